"""Sampler chains, against the logits themselves."""

import pytest
from llama_cpp import llama_cpp as binding  # noqa: TID251 - the logits are compared with what was sampled

from car_daemon.engine.llama.context import LlamaContext
from car_daemon.engine.llama.tokens import Vocabulary
from car_protocol.sampling import Sampling
from tests.daemon.engine.llama.conftest import MakeContext, chains_of, last_row, prefill, run_of

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
