"""Sampler chains, against the logits themselves."""

from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as binding  # noqa: TID251 - the logits are compared with what was sampled

from car_engine.llama.context import LlamaContext
from car_engine.llama.tokens import Vocabulary
from car_protocol.sampling import Sampling
from tests.engine.llama.conftest import MakeContext, chains_of, last_row, prefill, run_of

PROMPT = "How do I see how busy the daemon is?"


@pytest.fixture
def context(make_context: MakeContext, vocabulary: Vocabulary) -> LlamaContext:
    """A context whose last row has the logits after a prompt."""
    context = make_context()
    prefill(context, vocabulary, PROMPT)
    return context


@pytest.fixture
def last(vocabulary: Vocabulary) -> int:
    """The row with the logits."""
    return last_row(vocabulary, PROMPT)


def logits(context: LlamaContext, vocabulary: Vocabulary, row: int) -> list[float]:
    values: list[float] = binding.llama_get_logits_ith(context._context, row)[: vocabulary.size]
    return values


def sample(
    context: LlamaContext, vocabulary: Vocabulary, row: int, sampling: Sampling, seed: int = 1, times: int = 1
) -> list[int]:
    sampler = chains_of(vocabulary, context).build(run_of(sampling, seed), [])
    tokens = [context.sample(sampler, row) for _ in range(times)]
    sampler.close()
    return tokens


def test_temperature_zero_takes_the_most_likely_token(context: LlamaContext, vocabulary: Vocabulary, last: int) -> None:
    values = logits(context, vocabulary, last)
    assert sample(context, vocabulary, last, Sampling(temperature=0.0)) == [values.index(max(values))]


def test_where_the_most_likely_token_ends_the_answer_ignored_ends_leave_the_next_one(
    make_context: MakeContext, vocabulary: Vocabulary
) -> None:
    context, answered = make_context(), "<|user|>Hi<|end|>"
    prefill(context, vocabulary, answered)
    row = last_row(vocabulary, answered)
    values = np.array(logits(context, vocabulary, row))
    ends = sorted(vocabulary.ends)
    # The row's own logits are bent so that an end is the likeliest.
    context.logits(row)[ends] = values.max() + 1
    values[ends] = -np.inf
    assert sample(context, vocabulary, row, Sampling(temperature=0.0)) == ends[:1]
    assert sample(context, vocabulary, row, Sampling(temperature=0.0, ignore_eos=True)) == [int(values.argmax())]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_of_equally_likely_tokens_llama_takes_the_first_as_the_short_way_does(
    context: LlamaContext, vocabulary: Vocabulary, last: int, ignore_eos: bool
) -> None:
    equal = [9, 40, 41, 300]
    context.logits(last)[equal] = 1000.0
    sampler = chains_of(vocabulary, context).build(run_of(Sampling(temperature=0.0, ignore_eos=ignore_eos)), [])
    assert sampler.never is not None
    short_way = context.sample(sampler, last)
    sampler.never = None
    assert short_way == context.sample(sampler, last) == 9
    sampler.close()


@pytest.mark.parametrize(
    "more", [{"logit_bias": {"5": 1.0}}, {"repeat_penalty": 1.1}, {"presence_penalty": 1.0}, {"temperature": 0.5}]
)
def test_what_shapes_the_logits_takes_no_short_way(
    context: LlamaContext, vocabulary: Vocabulary, more: dict[str, Any]
) -> None:
    sampler = chains_of(vocabulary, context).build(run_of(Sampling(**{"temperature": 0.0, **more})), [])
    assert sampler.never is None
    sampler.close()


def test_top_k_of_one_takes_the_most_likely_token_at_any_temperature(
    context: LlamaContext, vocabulary: Vocabulary, last: int
) -> None:
    greedy = sample(context, vocabulary, last, Sampling(temperature=0.0))
    assert sample(context, vocabulary, last, Sampling(temperature=5.0, top_k=1), times=20) == greedy * 20


def test_the_same_seed_gives_the_same_tokens(context: LlamaContext, vocabulary: Vocabulary, last: int) -> None:
    wild = Sampling(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0)
    first, second, other = (sample(context, vocabulary, last, wild, seed, times=30) for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_with_ignored_ends_no_end_token_is_ever_sampled(
    context: LlamaContext, vocabulary: Vocabulary, last: int
) -> None:
    wild = Sampling(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)
    assert vocabulary.ends
    assert not set(sample(context, vocabulary, last, wild, times=2000)) & vocabulary.ends


def test_a_penalty_turns_away_from_what_was_sampled(context: LlamaContext, vocabulary: Vocabulary, last: int) -> None:
    penalized = Sampling(temperature=0.0, repeat_penalty=10.0, presence_penalty=10.0, frequency_penalty=10.0)
    tokens = sample(context, vocabulary, last, penalized, times=5)
    assert len(set(tokens)) > 1
    assert tokens[:1] == sample(context, vocabulary, last, Sampling(temperature=0.0))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(top_k=0, top_p=1.0, min_p=0.0, typical_p=0.5),
        Sampling(repeat_penalty=1.1, repeat_last_n=-1),
        Sampling(repeat_penalty=1.1, repeat_last_n=0),
        Sampling(top_p=0.0, min_p=1.0, typical_p=0.0),
    ],
)
def test_any_legal_sampling_gives_a_token(
    context: LlamaContext, vocabulary: Vocabulary, last: int, sampling: Sampling
) -> None:
    assert all(0 <= token < vocabulary.size for token in sample(context, vocabulary, last, sampling, times=3))
