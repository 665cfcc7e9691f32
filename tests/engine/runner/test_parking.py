"""Parked requests continue with the answer that they have alone."""

import pytest

from car_base.ipc.frames import Halt, Park, Resume
from tests.engine.fakes import END_TOKEN, FakeContext, FakeEngine, run_command, solo

LENGTH = 8
PROMPT, OTHER = [prompt for prompt in ([3 + n, 4, 5] for n in range(24)) if END_TOKEN not in solo(prompt, 60)][:2]
# Longer than a batch.
LONG = next(prompt for prompt in ([3 + n] * 40 for n in range(24)) if END_TOKEN not in solo(prompt, 20))


def engine_with(*, saved_bytes: int = 1000, restores: bool = True, sequences: int = 2) -> FakeEngine:
    return FakeEngine(FakeContext(sequences, batch_tokens=16, restores=restores), saved_bytes=saved_bytes)


def turn_until(engine: FakeEngine, tokens: int) -> None:
    """Let the loop turn until request 1 has some tokens."""
    for _ in range(100):
        if len(engine.tokens(1)) >= tokens:
            return
        engine.turn()
    raise AssertionError


@pytest.mark.parametrize(
    ("saved_bytes", "restores"), [(1000, True), (0, True), (1000, False)], ids=["saved", "no room", "refused"]
)
@pytest.mark.parametrize("turns", range(4))
def test_a_request_goes_on_with_the_answer_it_would_have_had(saved_bytes: int, restores: bool, turns: int) -> None:
    engine = engine_with(saved_bytes=saved_bytes, restores=restores)
    engine.turn(run_command(1, PROMPT, LENGTH))
    for _ in range(turns):
        engine.turn()
    sequence = engine.running.seats.sequences[1]
    cells = sequence.cells
    engine.park(1)
    assert engine.parked == [1]
    assert engine.context.cells == [[], []]
    engine.turn(run_command(2, OTHER, LENGTH))
    engine.resume(1)
    engine.finish()
    counters = engine.loop.counters
    kept = saved_bytes > 0 and restores
    assert counters["restored_tokens" if kept else "recomputed_tokens"] == cells
    assert counters["recomputed_tokens" if kept else "restored_tokens"] == 0
    assert (engine.tokens(1), engine.tokens(2)) == (solo(PROMPT, LENGTH), solo(OTHER, LENGTH))
    assert engine.ends(1)[0].usage.completion_tokens == LENGTH
    assert engine.context.cells == [[], []]


@pytest.mark.parametrize("saved_bytes", [0, 1000])
def test_a_request_can_be_parked_in_the_middle_of_its_prompt(saved_bytes: int) -> None:
    engine = engine_with(saved_bytes=saved_bytes)
    engine.turn(run_command(1, LONG, 4))
    engine.park(1)
    engine.resume(1)
    engine.finish()
    assert engine.tokens(1) == solo(LONG, 4)


@pytest.mark.parametrize("saved_bytes", [0, 1000])
def test_a_request_can_be_parked_again_while_it_is_computed_again(saved_bytes: int) -> None:
    engine = engine_with(saved_bytes=saved_bytes)
    engine.turn(run_command(1, LONG, LENGTH))
    turn_until(engine, 4)
    for _ in range(2):
        engine.park(1)
        engine.resume(1)
    engine.finish()
    assert engine.tokens(1) == solo(LONG, LENGTH)


def test_a_parked_request_keeps_its_sampler_until_it_ends() -> None:
    engine = engine_with()
    engine.turn(run_command(1, PROMPT, LENGTH))
    (sampler,) = engine.samplers.alive
    engine.park(1)
    engine.resume(1)
    assert engine.samplers.alive == [sampler]
    engine.finish()
    assert not engine.samplers.alive


def test_the_progress_of_a_request_that_is_computed_again_never_exceeds_its_prompt() -> None:
    engine = engine_with(saved_bytes=0)
    engine.turn(run_command(1, LONG, 12))
    turn_until(engine, 10)
    engine.park(1)
    engine.resume(1)
    engine.finish()
    assert max(update.prompt_done for update in engine.updates[1]) == len(LONG)


@pytest.mark.parametrize(("deadline", "reason"), [(False, None), (True, "deadline")])
def test_a_parked_request_can_be_halted(deadline: bool, reason: str | None) -> None:
    engine = engine_with()
    engine.turn(run_command(1, PROMPT, LENGTH))
    engine.park(1)
    engine.halt(1, deadline=deadline)
    assert [end.reason for end in engine.ends(1)] == [reason]
    assert (engine.samplers.alive, engine.saved.bytes) == ([], 0)
    engine.resume(1)
    assert len(engine.ends(1)) == 1
    assert not engine.table.busy


def test_parking_resuming_and_halting_in_one_turn_are_done_in_order() -> None:
    engine = engine_with()
    engine.turn(run_command(1, PROMPT, LENGTH), Park(1), Resume(1), Park(1), Halt(1, deadline=False))
    assert engine.parked == [1, 1]
    assert len(engine.ends(1)) == 1
    assert not engine.table.busy


def test_parking_or_resuming_what_is_unknown_changes_nothing() -> None:
    engine = engine_with()
    engine.turn(Park(9), Resume(9))
    assert engine.parked == []
    assert not engine.table.busy


def test_saved_cells_take_no_more_than_there_is_room_for() -> None:
    engine = engine_with(saved_bytes=8, sequences=4)
    engine.turn(*(run_command(key, PROMPT, LENGTH) for key in range(4)))
    for key in range(4):
        engine.park(key)
        assert engine.saved.bytes <= 8
    for key in range(4):
        engine.resume(key)
    assert engine.saved.bytes == 0
    engine.finish()
    assert [engine.tokens(key) for key in range(4)] == [solo(PROMPT, LENGTH)] * 4


@pytest.mark.parametrize(("save_s", "saves"), [(1e-6, 1), (10.0, 0)], ids=["cheap", "expensive"])
def test_cells_that_cost_more_to_move_than_to_compute_are_not_saved(save_s: float, saves: int) -> None:
    context = FakeContext(2, batch_tokens=16)
    context.cell_s = {"save": save_s, "restore": save_s}
    engine = FakeEngine(context, saved_bytes=1000)
    engine.turn(run_command(1, LONG, LENGTH))
    turn_until(engine, 2)
    engine.park(1)
    assert context.saves == saves
    engine.resume(1)
    engine.finish()
    assert engine.tokens(1) == solo(LONG, LENGTH)
