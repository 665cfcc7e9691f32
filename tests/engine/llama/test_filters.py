"""Every sampler of a chain alone and in its place, against what it is documented to do."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from car_engine.llama.context import LlamaContext
from car_engine.llama.sampler import Logits
from car_engine.llama.tokens import Vocabulary
from car_protocol.sampling import Dry, Sampling, Xtc
from tests.engine.llama import filters
from tests.engine.llama.conftest import MakeContext, chains_of, last_row, prefill, run_of
from tests.engine.llama.filters import Vector

# An unfinished sentence, after which many tokens are likely.
PROMPT = "daemon"
# Nothing is filtered.
ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
SOFTER = 0.4

Left = Callable[..., Vector]


@pytest.fixture
def context(make_context: MakeContext) -> LlamaContext:
    """A context, which the chains need to know its size."""
    return make_context()


@pytest.fixture
def logits(context: LlamaContext, vocabulary: Vocabulary) -> Logits:
    """The logits after the prompt."""
    prefill(context, vocabulary, PROMPT)
    return context.logits(last_row(vocabulary, PROMPT)).copy()


@pytest.fixture
def soft(logits: Logits) -> Logits:
    """The same, so much flatter that filters have much to do."""
    return logits * np.float32(SOFTER)


@pytest.fixture
def left(context: LlamaContext, vocabulary: Vocabulary) -> Left:
    """Return what a chain leaves of logits, after a prompt."""

    def apply(sampling: Sampling, logits: Logits, prompt: list[int] | None = None) -> Vector:
        sampler = chains_of(vocabulary, context).build(run_of(sampling), prompt or [])
        after = filters.left_by(sampler.chain, logits)
        sampler.close()
        return after

    return apply


def assert_same(left: Vector, expected: Vector) -> None:
    """Fail where other tokens are left, or with other logits."""
    assert set(np.flatnonzero(np.isfinite(left))) == set(np.flatnonzero(np.isfinite(expected)))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(left[finite], expected[finite], rtol=1e-4, atol=1e-3)


def test_nothing_is_filtered_unless_asked_for(left: Left, logits: Logits) -> None:
    assert_same(left(Sampling(**ALL), logits), logits.astype(np.float64))


@pytest.mark.parametrize("temperature", [0.25, 2.0, 5.0])
def test_temperature_divides_the_logits(left: Left, logits: Logits, temperature: float) -> None:
    sampling = Sampling(**{**ALL, "temperature": temperature})
    assert_same(left(sampling, logits), logits.astype(np.float64) / temperature)


CASES: list[tuple[dict[str, Any], Callable[[Vector], Vector]]] = [
    ({"top_k": 1}, lambda logits: filters.top_k(logits, 1)),
    ({"top_k": 7}, lambda logits: filters.top_k(logits, 7)),
    ({"top_k": 300}, lambda logits: filters.top_k(logits, 300)),
    ({"top_p": 0.0}, lambda logits: filters.top_p(logits, 0.0)),
    ({"top_p": 0.5}, lambda logits: filters.top_p(logits, 0.5)),
    ({"top_p": 0.95}, lambda logits: filters.top_p(logits, 0.95)),
    ({"min_p": 0.05}, lambda logits: filters.min_p(logits, 0.05)),
    ({"min_p": 0.6}, lambda logits: filters.min_p(logits, 0.6)),
    ({"min_p": 1.0}, lambda logits: filters.min_p(logits, 1.0)),
    ({"typical_p": 0.2}, lambda logits: filters.typical(logits, 0.2)),
    ({"typical_p": 0.9}, lambda logits: filters.typical(logits, 0.9)),
    ({"top_n_sigma": 0.5}, lambda logits: filters.top_n_sigma(logits, 0.5)),
    ({"top_n_sigma": 2.0}, lambda logits: filters.top_n_sigma(logits, 2.0)),
    ({"xtc": Xtc(1.0, 0.05)}, lambda logits: filters.xtc(logits, 0.05)),
    ({"xtc": Xtc(1.0, 0.99)}, lambda logits: logits),
    ({"xtc": Xtc(0.0, 0.05)}, lambda logits: logits),
]


@pytest.mark.parametrize(("given", "documented"), CASES, ids=[str(given) for given, _ in CASES])
def test_a_filter_keeps_exactly_the_tokens_that_it_should(
    left: Left, logits: Logits, soft: Logits, given: dict[str, Any], documented: Callable[[Vector], Vector]
) -> None:
    for some in (logits, soft):
        assert_same(left(Sampling(**{**ALL, **given}), some), documented(some.astype(np.float64)))


@pytest.mark.parametrize("seed", range(40))
def test_filters_work_in_their_order_and_before_the_temperature(left: Left, soft: Logits, seed: int) -> None:
    random = Random(seed)
    sampling = Sampling(
        top_n_sigma=random.choice([-1.0, 1.5, 3.0]),
        top_k=random.choice([0, 5, 40, 200]),
        typical_p=random.choice([1.0, 0.4, 0.8]),
        top_p=random.choice([1.0, 0.5, 0.9]),
        min_p=random.choice([0.0, 0.05, 0.3]),
        xtc=random.choice([None, Xtc(1.0, 0.04)]),
        temperature=random.choice([0.3, 1.0, 4.0]),
    )
    assert_same(left(sampling, soft), filtered(sampling, soft.astype(np.float64)) / sampling.temperature)


def filtered(sampling: Sampling, logits: Vector) -> Vector:
    """Return what the filters leave, one after the other."""
    if sampling.top_n_sigma > 0:
        logits = filters.top_n_sigma(logits, sampling.top_n_sigma)
    if sampling.top_k:
        logits = filters.top_k(logits, sampling.top_k)
    if sampling.typical_p < 1:
        logits = filters.typical(logits, sampling.typical_p)
    if sampling.top_p < 1:
        logits = filters.top_p(logits, sampling.top_p)
    logits = filters.min_p(logits, sampling.min_p)
    return logits if sampling.xtc is None else filters.xtc(logits, sampling.xtc.threshold)


def test_a_forbidden_token_does_not_change_what_is_typical(left: Left, vocabulary: Vocabulary, soft: Logits) -> None:
    sampling = Sampling(**ALL, typical_p=0.5, ignore_eos=True, logit_bias={"20": -100.0, "21": -100.0})
    expected = soft.astype(np.float64)
    expected[[20, 21]] -= 100
    expected[list(vocabulary.ends)] = -np.inf
    assert_same(left(sampling, soft), filters.typical(expected, 0.5))


PENALTIES: list[tuple[float, float, float]] = [
    (1.3, 0.0, 0.0),
    (0.7, 0.0, 0.0),
    (1.0, 0.8, 0.0),
    (1.0, 0.0, 1.5),
    (1.0, -2.0, -1.0),
    (1.1, 0.5, 0.25),
]


@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("last", [-1, 3, 64])
def test_penalties_lower_what_came_in_the_window_the_prompt_included(
    left: Left, logits: Logits, penalties: tuple[float, float, float], last: int
) -> None:
    best = [int(token) for token in np.argsort(-logits)[:4]]
    prompt = [best[0], best[1], best[1], 100, best[2], best[2], best[2], best[3]]
    repeat, frequency, presence = penalties
    sampling = Sampling(
        **ALL, repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence, repeat_last_n=last
    )
    window = prompt[-last:] if last > 0 else prompt
    assert_same(left(sampling, logits, prompt), filters.penalized(logits.astype(np.float64), window, *penalties))


def test_without_a_window_nothing_is_penalized(left: Left, logits: Logits) -> None:
    sampling = Sampling(**ALL, repeat_penalty=5.0, repeat_last_n=0)
    assert_same(left(sampling, logits, [int(logits.argmax())]), logits.astype(np.float64))


def test_what_was_sampled_is_penalized_like_the_prompt(
    context: LlamaContext, vocabulary: Vocabulary, logits: Logits
) -> None:
    sampling = Sampling(**{**ALL, "temperature": 0.5}, presence_penalty=3.0, frequency_penalty=0.5)
    sampler = chains_of(vocabulary, context).build(run_of(sampling), [50, 51])
    rows = len(vocabulary.tokenize(PROMPT, add_special=True, parse_special=False))
    sampled = [context.sample(sampler, rows - 1) for _ in range(12)]
    after = filters.left_by(sampler.chain, logits)
    sampler.close()
    expected = filters.penalized(logits.astype(np.float64), [50, 51, *sampled], 1.0, 0.5, 3.0)
    assert_same(after, expected / 0.5)


def test_penalties_and_biases_come_before_filters(left: Left, logits: Logits) -> None:
    best, second, third = (int(token) for token in np.argsort(-logits)[:3])
    one = {**ALL, "top_k": 1}
    penalized = left(Sampling(**one, presence_penalty=10.0), logits, [best])
    assert np.flatnonzero(np.isfinite(penalized)) == [second]
    biased = left(Sampling(**one, logit_bias={str(third): 50.0}), logits)
    assert np.flatnonzero(np.isfinite(biased)) == [third]


def test_a_bias_is_added_to_its_logit(left: Left, logits: Logits) -> None:
    expected = logits.astype(np.float64)
    expected[[7, 900]] += 2.5, -30.0
    assert_same(left(Sampling(**ALL, logit_bias={"7": 2.5, "900": -30.0}), logits), expected)


@pytest.mark.parametrize(("last", "length"), [(-1, 4), (6, 2)])
def test_dry_lowers_what_would_continue_a_repetition_more_the_longer_it_is(
    left: Left, vocabulary: Vocabulary, logits: Logits, last: int, length: int
) -> None:
    words = [token for token, piece in enumerate(vocabulary.pieces) if piece.isalpha() and len(piece) > 2][:6]
    prompt = [*words[:5], words[5], *words[:4]]
    dry = Dry(multiplier=0.8, base=1.75, allowed_length=2, penalty_last_n=last)
    expected = logits.astype(np.float64)
    if last < 0:
        expected[words[4]] -= 0.8 * 1.75 ** (length - 2)
    assert_same(left(Sampling(**ALL, dry=dry), logits, prompt), expected)


def test_dry_forbids_continuing_a_repetition_and_forgets_at_a_breaker(
    context: LlamaContext, vocabulary: Vocabulary
) -> None:
    words = [token for token, piece in enumerate(vocabulary.pieces) if piece.isalpha() and len(piece) > 2][:6]
    colon = vocabulary.pieces.index(b":")
    wanted = np.zeros(vocabulary.size, np.float32)
    wanted[words[4]] = 20.0
    greedy = Sampling(temperature=0.0, dry=Dry(multiplier=10.0, allowed_length=1))
    for between, free in ((words[3], False), (colon, True)):
        again = [*words[:3], between]
        sampler = chains_of(vocabulary, context).build(run_of(greedy), [*again, words[4], words[5], *again])
        after = filters.left_by(sampler.chain, wanted)
        sampler.close()
        assert (int(after.argmax()) == words[4]) == free
