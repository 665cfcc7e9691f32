"""Guesses of a draft model: only where they pay, and never a different answer."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.guesses.drafter import DraftFailed
from car_daemon.ipc.frames import Halt, Park, Resume
from tests.daemon.engine.fakes import FakeContext, FakeEngine, next_token, run_command, solo

# Further rows cost next to nothing. The clock counts three milliseconds for a step, and one for one of the draft.
COSTS, DRAFT_COSTS = {1: 0.003, 64: 0.0033}, {1: 0.001, 64: 0.0011}


def never_ending(history: list[int]) -> int:
    """Return a token that depends on all before it, and repeats nothing."""
    return max(1, next_token(history))


def wrong(history: list[int]) -> int:
    """Return another token than the model's."""
    return 1 + never_ending(history) % 25


def answer(prompt: list[int], count: int) -> list[int]:
    said = list(prompt)
    while len(said) < len(prompt) + count:
        said.append(never_ending(said))
    return said[len(prompt) :]


def engine_of(
    draft: Callable[[list[int]], int] | None = never_ending,
    *,
    sequences: int = 4,
    costs: dict[int, float] = COSTS,
    draft_cost: float = 1.0,
    draft_tokens: int = 512,
) -> FakeEngine:
    """Return an engine with a draft model that says what `draft` returns."""
    guessing = None if draft is None else FakeContext(sequences, draft_tokens, batch_tokens=64, says=draft)
    return FakeEngine(
        FakeContext(sequences, context_tokens=512, batch_tokens=64, says=never_ending),
        speculates=True,
        costs=StepCosts(costs),
        draft=guessing,
        draft_costs=StepCosts({rows: draft_cost * seconds for rows, seconds in DRAFT_COSTS.items()}, {64: 0.002}),
    )


def steps(engine: FakeEngine) -> float:
    return engine.loop.counters["decode_steps"]


@pytest.mark.parametrize("max_tokens", [1, 2, 17, 200])
@pytest.mark.parametrize("draft", [never_ending, wrong])
def test_the_answer_is_the_one_without_a_draft(draft: Callable[[list[int]], int], max_tokens: int) -> None:
    engine = engine_of(draft)
    engine.turn(run_command(1, [3, 1, 4], max_tokens, namespace="me"))
    engine.finish()
    assert engine.tokens(1) == answer([3, 1, 4], max_tokens)


def test_a_model_that_drafts_itself_takes_far_fewer_steps_and_is_always_right() -> None:
    engine, alone = engine_of(), engine_of(None)
    for each in (engine, alone):
        each.turn(run_command(1, [3, 1, 4], 200, namespace="me"))
        each.finish()
    assert steps(engine) < steps(alone) / 3
    counters = engine.loop.counters
    assert counters["draft_tried"] == counters["draft_right"] > 100


def test_a_draft_that_is_wrong_is_given_up() -> None:
    engine = engine_of(wrong)
    for key in range(3):
        engine.turn(run_command(key, [3, 1, 4, key], 400, namespace="me"))
        engine.finish()
    counters = engine.loop.counters
    assert counters["draft_right"] == 0
    assert 0 < counters["draft_tried"] < 40


def test_a_draft_that_costs_as_much_as_a_step_is_not_used() -> None:
    engine = engine_of(draft_cost=12.0)
    engine.turn(run_command(1, [3, 1, 4], 200, namespace="me"))
    engine.finish()
    assert engine.loop.counters["draft_tried"] == 0


def test_a_draft_that_pays_only_if_it_is_nearly_always_right_is_tried() -> None:
    # A guess takes five milliseconds in all: it pays if it is right four times of five, not if three of four.
    engine = engine_of(costs={1: 0.003, 2: 0.004, 64: 0.2})
    engine.turn(run_command(1, [3, 1, 4], 60, namespace="me"))
    engine.finish()
    assert engine.loop.counters["draft_right"] > 20


@pytest.mark.parametrize("streams", [2, 3, 4])
def test_streams_at_once_are_drafted_in_one_batch_and_have_their_own_answers(streams: int) -> None:
    engine = engine_of()
    prompts = [[key + 1, *range(1, 2 + key)] for key in range(streams)]
    engine.turn(*(run_command(key, prompt, 60 + 20 * key, namespace=None) for key, prompt in enumerate(prompts)))
    engine.finish()
    for key, prompt in enumerate(prompts):
        assert engine.tokens(key) == answer(prompt, 60 + 20 * key)
    assert engine.draft is not None
    assert max(len(set(batch.numbers)) for batch in engine.draft.batches) == streams
    assert steps(engine) < 60


def test_a_long_prompt_is_computed_by_the_draft_a_chunk_a_step() -> None:
    engine = engine_of()
    prompt = [1 + place % 25 for place in range(300)]
    engine.turn(run_command(1, prompt, 150, namespace="me"))
    engine.finish()
    assert engine.tokens(1) == answer(prompt, 150)
    assert engine.draft is not None
    assert max(len(batch.tokens) for batch in engine.draft.batches) <= 64
    assert engine.loop.counters["draft_right"] > 80


def drafted_rows(engine: FakeEngine) -> int:
    assert engine.draft is not None
    return sum(len(batch.tokens) for batch in engine.draft.batches)


@pytest.mark.parametrize(("namespace", "shares"), [("me", True), ("you", False), (None, False)])
def test_the_cells_of_a_draft_are_for_prompts_of_the_same_namespace_only(namespace: str | None, shares: bool) -> None:
    engine = engine_of(sequences=1)
    prompt = [1 + place % 25 for place in range(200)]
    engine.turn(run_command(1, prompt, 40, namespace="me"))
    engine.finish()
    before = drafted_rows(engine)
    later = [*prompt, *answer(prompt, 40), 7]
    engine.turn(run_command(2, later, 40, namespace=namespace))
    engine.finish()
    assert engine.tokens(2) == answer(later, 40)
    assert (drafted_rows(engine) - before < 150) is shares


def test_a_parked_request_is_drafted_again_once_it_resumes() -> None:
    engine = engine_of()
    engine.turn(run_command(1, [3, 1, 4], 200, namespace="me"))
    for _ in range(6):
        engine.turn()
    engine.turn(Park(1))
    engine.turn(run_command(2, [5, 9], 30, namespace="me"))
    engine.finish()
    engine.turn(Resume(1))
    before = steps(engine)
    engine.finish()
    assert (engine.tokens(1), engine.tokens(2)) == (answer([3, 1, 4], 200), answer([5, 9], 30))
    assert steps(engine) - before < 80


def test_a_halt_inside_a_guess_leaves_the_sequence_to_the_next_request() -> None:
    engine = engine_of(sequences=1)
    engine.turn(run_command(1, [3, 1, 4], 200, namespace="me"))
    for _ in range(6):
        engine.turn()
    engine.turn(Halt(1, deadline=False))
    engine.turn(run_command(2, [3, 1, 4, 1], 50, namespace="me"))
    engine.finish()
    assert engine.tokens(2) == answer([3, 1, 4, 1], 50)


def test_no_more_is_drafted_than_either_context_has_room_for() -> None:
    engine = engine_of(draft_tokens=64)
    engine.turn(run_command(1, [3, 1, 4], 300, namespace="me"))
    engine.finish()
    assert engine.tokens(1) == answer([3, 1, 4], 300)
    assert 0 < engine.loop.counters["draft_right"] <= 64


def test_a_request_that_a_grammar_binds_is_not_drafted() -> None:
    engine = engine_of()
    engine.turn(run_command(1, [3, 1, 4], 8, constraint="abcdefgh"))
    engine.finish()
    assert engine.text(1) == "abcdefgh"
    assert drafted_rows(engine) == 0


def test_a_failed_decode_of_the_draft_ends_the_engine() -> None:
    engine = engine_of()
    assert engine.draft is not None
    engine.draft.codes = {0: -3}
    engine.turn(run_command(1, [3, 1, 4], 8))
    with pytest.raises(DraftFailed, match="returned -3"):
        engine.finish()


def test_sampled_tokens_have_the_distribution_that_they_have_without_a_draft() -> None:
    likely, chance, offsets = 0.7, Random(1), Counter[int]()

    def likeliest(history: list[int]) -> int:
        # Pairs of tokens rarely occur twice, so that earlier text has little to guess from.
        return 1 + (3 * history[-1] + 7 * history[-2]) % 25

    def samples(history: list[int]) -> int:
        return likeliest(history) if chance.random() < likely else chance.randint(1, 25)

    engine = FakeEngine(
        FakeContext(2, context_tokens=512, batch_tokens=64, says=samples),
        speculates=True,
        costs=StepCosts(COSTS),
        draft=FakeContext(2, 512, batch_tokens=64, says=likeliest),
        draft_costs=StepCosts(DRAFT_COSTS),
    )
    for key in range(30):
        engine.turn(run_command(key, [3, 4, 1 + key % 25], 400, namespace=None))
        engine.finish()
        said = [4, 1 + key % 25, *engine.tokens(key)]
        offsets.update((token - likeliest(said[: place + 2])) % 25 for place, token in enumerate(said[2:]))
    assert engine.loop.counters["draft_right"] > 2000, "guesses came true"
    total = offsets.total()
    expected = [total * (likely + 0.3 / 25), *[total * 0.3 / 25] * 24]
    chi_square = sum((offsets[offset] - count) ** 2 / count for offset, count in enumerate(expected))
    assert chi_square < 51.2, "the one in a thousand of 24 degrees of freedom"


def test_an_answer_of_the_model_ends_where_it_ends_without_a_draft() -> None:
    engine = FakeEngine(
        FakeContext(2, context_tokens=512, batch_tokens=64),
        speculates=True,
        costs=StepCosts(COSTS),
        draft=FakeContext(2, 512, batch_tokens=64),
        draft_costs=StepCosts(DRAFT_COSTS),
    )
    for key in range(8):
        engine.turn(run_command(key, [3, key + 1], 100, namespace="me"))
        engine.finish()
        assert engine.tokens(key) == solo([3, key + 1], 100)
