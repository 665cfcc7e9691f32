"""The shortlist against llama.cpp's look at all tokens: the same choices by the same draws."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_engine.grammar.constraint import Constraints
from car_engine.llama.sampler import MOST, Candidates, Logits, Sampler, Shortlist, likeliest
from car_engine.llama.sampler_chains import SamplerChains
from car_engine.llama.tokens import Vocabulary
from car_protocol.sampling import Dry, Mirostat, Sampling, Xtc
from tests.engine.llama.conftest import run_of

SIZE = 80_003  # no multiple of the columns
ENDS = frozenset({2, 7})
DRAWS = 200
SHORT: list[dict[str, Any]] = [
    {},
    {"temperature": 2.0, "top_k": 200, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 2.0, "top_k": 90, "top_p": 1.0, "typical_p": 0.7},
    {"temperature": 2.0, "xtc": Xtc(probability=0.5, threshold=0.1)},
    {"temperature": 2.0, "ignore_eos": True},
    {"temperature": 2.0, "logit_bias": {"5": 100.0, "39999": -100.0, "4000000000": 3.0}},
    {"temperature": 2.0, "repeat_penalty": 1.5},
    {"temperature": 2.0, "repeat_penalty": 0.5, "repeat_last_n": 9, "presence_penalty": -3.0},
    {"temperature": 2.0, "frequency_penalty": 5.0, "logit_bias": {"1": 9.0}, "ignore_eos": True},
    {"temperature": 0.0, "repeat_penalty": 1.5},
    {"temperature": 0.0, "presence_penalty": -2.0, "logit_bias": {"3": 5.0}},
]
WHOLE: list[dict[str, Any]] = [
    {"top_k": 0},
    {"top_k": MOST + 1},
    {"top_n_sigma": 1.0},
    {"mirostat": Mirostat(version=2)},
    {"dry": Dry(multiplier=1.0)},
    {"repeat_penalty": 1.1, "repeat_last_n": -1},
    {"logit_bias": {str(token): -1.0 for token in range(MOST)}},
]


class LargeVocabulary:
    """The part of a vocabulary that samplers read, of a size that no model of the tests has."""

    size = SIZE
    ends = ENDS

    def __init__(self, real: Vocabulary) -> None:
        self.handle = real.handle


@pytest.fixture
def chains(vocabulary: Vocabulary) -> SamplerChains:
    """Samplers of a large vocabulary."""
    constraints = Constraints(vocabulary.pieces, vocabulary.ends, vocabulary.control)
    return SamplerChains(cast(Vocabulary, LargeVocabulary(vocabulary)), constraints, context_tokens=1024)


@contextmanager
def built(chains: SamplerChains, sampling: dict[str, Any], prompt: list[int]) -> Iterator[Sampler]:
    with closing(chains.build(run_of(Sampling(**sampling), seed=7), prompt)) as sampler:
        yield sampler


@cache
def rows() -> tuple[Logits, ...]:
    """Return logits, of which some tokens are far likelier than the others, the ends among them."""
    random = np.random.default_rng(3)
    found = []
    for _ in range(DRAWS):
        logits = random.normal(0, 2, SIZE)
        logits[random.integers(0, 50, 30)] += 8
        logits[sorted(ENDS)] += 6
        found.append(logits.astype(np.float32))
    return tuple(found)


def looked_at_all(sampler: Sampler, logits: Logits, all_tokens: Candidates) -> int:
    token = all_tokens.choose(sampler.chain, logits)
    sampler.accept(token)
    return token


@pytest.mark.parametrize("sampling", SHORT)
def test_a_shortlist_gives_the_choices_of_all_tokens(chains: SamplerChains, sampling: dict[str, Any]) -> None:
    prompt, all_tokens = [1, 1, 5, 39_000, -1, 8], Candidates(SIZE)
    with built(chains, sampling, prompt) as short, built(chains, sampling, prompt) as whole:
        for logits in rows():
            assert short.short_way(logits) == looked_at_all(whole, logits, all_tokens)


def test_the_draws_of_a_shortlist_are_many(chains: SamplerChains) -> None:
    with built(chains, {"temperature": 2.0}, []) as sampler:
        assert len({sampler.short_way(logits) for logits in rows()}) > 20


@pytest.mark.parametrize("sampling", WHOLE)
def test_where_more_tokens_decide_all_are_looked_at(chains: SamplerChains, sampling: dict[str, Any]) -> None:
    with built(chains, sampling, []) as sampler:
        assert sampler.short_way(rows()[0]) is None


def test_logits_that_are_no_numbers_are_left_to_llama() -> None:
    logits = np.full(SIZE, np.nan, np.float32)
    assert Shortlist(40, (), 0).of(logits) is None


def test_so_many_equal_logits_that_a_shortlist_is_long_are_left_to_llama() -> None:
    assert Shortlist(40, (), 0).of(np.zeros(SIZE, np.float32)) is None


def test_a_shortlist_is_short() -> None:
    found = [Shortlist(40, (), 0).of(logits) for logits in rows()]
    assert all(each is not None and 40 <= len(each) < 400 for each in found)


@given(
    st.integers(512, 20_000),
    st.dictionaries(st.integers(0, 511), st.floats(-40, 40, width=32) | st.sampled_from([-np.inf, np.inf, 0.0])),
    st.integers(1, MOST),
    st.lists(st.integers(0, 511), unique=True),
)
def test_the_likeliest_are_among_those_found(
    size: int, set_to: dict[int, float], count: int, others: list[int]
) -> None:
    logits = np.random.default_rng(1).normal(0, 4, size).astype(np.float32)
    logits[list(set_to)] = list(set_to.values())
    found = likeliest(logits, count, others)
    assert found is not None
    assert found.tolist() == sorted(set(found.tolist()))
    assert set(others) <= set(found.tolist())
    greatest_left_out = np.delete(logits, found).max(initial=-np.inf)
    assert (logits[found] >= greatest_left_out).sum() >= count
