"""Frequencies of tokens against the probabilities of the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from car_engine.grammar.constraint import ConstraintError
from car_engine.grammar.gbnf import parse
from car_engine.grammar.lark import as_lark
from car_engine.llama.context import LlamaContext
from car_engine.llama.sampler import Logits, Logprobs
from car_engine.llama.sampler_chains import SamplerChains
from car_engine.llama.tokens import Vocabulary
from car_protocol.sampling import Mirostat, Sampling, Xtc
from tests.engine.llama.conftest import MakeContext, chains_of, last_row, prefill, run_of
from tests.engine.llama.filters import assert_follows, keep, softmax, top_p

# An unfinished sentence, after which many tokens are likely.
PROMPT = "daemon"
ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
DRAWS = 20_000
# Draws under a grammar are from a fresh sampler each.
TRIALS = 3000
A_OR_B = as_lark(parse('root ::= "a" | "b"'))

Sample = Callable[..., list[int]]


@pytest.fixture
def context(make_context: MakeContext, vocabulary: Vocabulary) -> LlamaContext:
    """A context that has decoded the prompt."""
    context = make_context()
    prefill(context, vocabulary, PROMPT)
    return context


@pytest.fixture
def row(vocabulary: Vocabulary) -> int:
    """The row with the logits."""
    return last_row(vocabulary, PROMPT)


@pytest.fixture
def logits(context: LlamaContext, row: int) -> Logits:
    """The logits after the prompt."""
    return context.logits(row).copy()


@pytest.fixture
def chains(vocabulary: Vocabulary, context: LlamaContext) -> SamplerChains:
    """The factory of samplers."""
    return chains_of(vocabulary, context)


@pytest.fixture
def sample(context: LlamaContext, chains: SamplerChains, row: int) -> Sample:
    """Draw tokens for the prompt, all with one sampler."""

    def draw(sampling: Sampling, times: int = DRAWS, seed: int = 1) -> list[int]:
        sampler = chains.build(run_of(sampling, seed), [])
        tokens = [context.sample(sampler, row) for _ in range(times)]
        sampler.close()
        return tokens

    return draw


def constrained(chains: SamplerChains, sampling: Sampling, logits: Logits, grammar: str, seed: int) -> int:
    sampler = chains.build(run_of(sampling, seed, constraint=grammar), [])
    try:
        return sampler.choose(logits)
    finally:
        sampler.close()


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-40, 1e-38, 1e-10, 1e-5])
def test_no_temperature_takes_the_likeliest(sample: Sample, logits: Logits, temperature: float) -> None:
    for more in ({}, ALL, {"mirostat": Mirostat(1)}, {"mirostat": Mirostat(2)}):
        assert sample(Sampling(temperature=temperature, **more), 20) == [int(logits.argmax())] * 20


def test_one_candidate_is_the_likeliest(sample: Sample, logits: Logits) -> None:
    assert sample(Sampling(temperature=5.0, top_k=1), 20) == [int(logits.argmax())] * 20


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 5.0])
def test_tokens_come_as_often_as_they_are_likely(sample: Sample, logits: Logits, temperature: float) -> None:
    tokens = sample(Sampling(temperature=temperature, **ALL))
    assert_follows(tokens, softmax(logits.astype(np.float64) / temperature))


def test_another_temperature_would_have_been_noticed(sample: Sample, logits: Logits) -> None:
    with pytest.raises(AssertionError):
        assert_follows(sample(Sampling(temperature=1.1, **ALL)), softmax(logits.astype(np.float64)))


def test_the_usual_filters_leave_the_rest_as_likely_as_they_were(sample: Sample, logits: Logits) -> None:
    wide = logits.astype(np.float64)
    left = top_p(keep(wide, np.argsort(-wide)[:40]), 0.95)
    left = keep(left, softmax(left) >= 0.05 * softmax(left).max())
    assert_follows(sample(Sampling()), softmax(left / 0.8))


def test_top_choices_are_excluded_as_often_as_asked(sample: Sample, logits: Logits) -> None:
    wide = logits.astype(np.float64)
    top = np.flatnonzero(softmax(wide) >= 0.05)
    last = top[wide[top].argmin()]
    excluded = wide.copy()
    excluded[np.setdiff1d(top, [last])] = -np.inf
    tokens = sample(Sampling(temperature=1.0, **ALL, xtc=Xtc(0.3, 0.05)))
    assert_follows(tokens, 0.7 * softmax(wide) + 0.3 * softmax(excluded))


def test_a_bias_of_100_forces_and_one_of_minus_100_forbids(sample: Sample, logits: Logits) -> None:
    assert set(sample(Sampling(**ALL, logit_bias={"77": 100.0}), 500)) == {77}
    best = int(logits.argmax())
    assert best not in sample(Sampling(**ALL, logit_bias={str(best): -100.0}), 5000)


def test_the_seed_decides(sample: Sample) -> None:
    wild = Sampling(temperature=3.0, **ALL, xtc=Xtc(0.5, 0.05))
    first, second, other = (sample(wild, 50, seed) for seed in (7, 7, 8))
    assert first == second
    assert first != other


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [4.0, pytest.param(5.0, marks=pytest.mark.slow)])
def test_mirostat_keeps_the_surprise_near_what_was_asked(
    sample: Sample, logits: Logits, version: Any, tau: float
) -> None:
    surprise = -np.log2(softmax(logits.astype(np.float64) / 2))
    assert surprise[sample(Sampling(temperature=2.0, **ALL))].mean() > 6.0, "there is something to do"
    tokens = sample(Sampling(temperature=2.0, mirostat=Mirostat(version, tau, 0.1)), 4000)
    # It counts the surprise among the candidates that it leaves, which is a little less.
    assert abs(surprise[tokens[500:]].mean() - tau) < 0.8


AGREEMENT = {"mostly": 5.0, "never": -40.0}


@pytest.mark.parametrize("agrees", ["mostly", pytest.param("never", marks=pytest.mark.slow)])
@pytest.mark.parametrize("temperature", [1.0, pytest.param(2.0, marks=pytest.mark.slow)])
def test_under_a_grammar_tokens_come_as_often_as_they_are_likely_among_the_allowed(
    chains: SamplerChains, vocabulary: Vocabulary, logits: Logits, agrees: str, temperature: float
) -> None:
    a, b = (vocabulary.pieces.index(letter) for letter in (b"a", b"b"))
    some = logits.copy()
    some[[a, b]] = logits.max() + np.array([AGREEMENT[agrees], AGREEMENT[agrees] - 1], np.float32)
    wide = some.astype(np.float64) / temperature
    free = softmax(wide)[[a, b]].sum()
    assert 0.5 < free < 0.999 if agrees == "mostly" else free < 1e-4
    sampling = Sampling(temperature=temperature, **ALL)
    tokens = [constrained(chains, sampling, some, A_OR_B, seed) for seed in range(TRIALS)]
    assert_follows(tokens, softmax(keep(wide, [a, b])))


def test_filters_count_among_the_allowed_where_the_free_choice_is_refused(
    chains: SamplerChains, vocabulary: Vocabulary, logits: Logits
) -> None:
    a, b = (vocabulary.pieces.index(letter) for letter in (b"a", b"b"))
    some = logits.copy()
    some[[a, b]] = -20.0, -25.0
    sampling = Sampling(temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)
    assert {constrained(chains, sampling, some, A_OR_B, seed) for seed in range(50)} == {a}


def test_greedy_under_a_grammar_is_the_likeliest_of_the_allowed(
    chains: SamplerChains, vocabulary: Vocabulary, logits: Logits
) -> None:
    grammar = as_lark(parse("root ::= [a-z]+"))
    allowed = [token for token, piece in enumerate(vocabulary.pieces) if piece and piece.isalpha() and piece.islower()]
    allowed = [token for token in allowed if vocabulary.pieces[token].isascii()]
    for shift in range(20):
        some = np.roll(logits, 37 * shift)
        expected = allowed[int(some[allowed].argmax())]
        assert constrained(chains, Sampling(temperature=0.0), some, grammar, 1) == expected


def test_under_a_grammar_the_seed_decides_every_token(chains: SamplerChains, logits: Logits) -> None:
    grammar = as_lark(parse("root ::= [a-z ]+"))

    def answer(seed: int) -> list[int]:
        sampler = chains.build(run_of(Sampling(temperature=3.0, **ALL), seed, constraint=grammar), [])
        tokens = [sampler.choose(np.roll(logits, 37 * step)) for step in range(30)]
        sampler.close()
        return tokens

    assert answer(5) == answer(5)
    assert answer(5) != answer(6)


def test_penalties_count_what_was_chosen_under_a_grammar(
    chains: SamplerChains, vocabulary: Vocabulary, logits: Logits
) -> None:
    sampling = Sampling(temperature=0.0, presence_penalty=10.0, frequency_penalty=10.0)
    sampler = chains.build(run_of(sampling, constraint=as_lark(parse("root ::= [abc] [abc] [abc]"))), [])
    flat = np.zeros_like(logits)
    letters = [vocabulary.pieces[sampler.choose(flat)] for _ in range(3)]
    sampler.close()
    assert sorted(letters) == [b"a", b"b", b"c"]


def test_a_grammar_that_allows_nothing_more_than_an_end_gives_an_end(
    chains: SamplerChains, vocabulary: Vocabulary, logits: Logits
) -> None:
    empty = as_lark(parse('root ::= ""'))
    for sampling in (Sampling(), Sampling(temperature=0.0), Sampling(ignore_eos=True), Sampling(**ALL, temperature=5)):
        assert constrained(chains, sampling, logits, empty, 1) in vocabulary.ends


def test_a_sampler_with_an_unknown_grammar_is_refused(chains: SamplerChains) -> None:
    with pytest.raises(ConstraintError):
        chains.build(run_of(Sampling(), constraint="start: nowhere"), [])


def test_logprobs_are_those_of_the_raw_logits(vocabulary: Vocabulary, logits: Logits) -> None:
    expected = np.log(softmax(logits.astype(np.float64)))
    order = [int(token) for token in np.argsort(-expected, kind="stable")]
    for token, count in ((order[0], 5), (order[700], 20), (order[3], 0)):
        said = Logprobs(vocabulary).of(logits, token, count)
        assert (said.token, said.text) == (token, vocabulary.text_of(token))
        assert said.logprob == pytest.approx(expected[token], abs=1e-6)
        assert [choice.token for choice in said.top] == order[:count]
        assert [choice.logprob for choice in said.top] == pytest.approx(expected[order[:count]], abs=1e-6)


def test_a_probability_of_zero_is_written_as_minus_1000(vocabulary: Vocabulary, logits: Logits) -> None:
    some = logits.copy()
    some[5], some[6] = -np.inf, -3000.0
    for token in (5, 6):
        assert Logprobs(vocabulary).of(some, token, 1).logprob == -1000.0
    every = Logprobs(vocabulary).of(some, 5, vocabulary.size + 10).top
    assert len(every) == vocabulary.size
    assert {choice.logprob for choice in every[-2:]} == {-1000.0}
