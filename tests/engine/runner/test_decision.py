"""Decisions in the loop: one prefix, then each tail behind it, cut back in between."""

from dataclasses import replace

import pytest

from car_base.ipc.codec import vector_of
from car_base.ipc.frames import DecisionForm, ImageSlot, Prepared, RequestUpdate, SpareMemory
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import ImageRows
from car_engine.images.encoder import Encoded
from tests.engine.fakes import FakeContext, FakeEngine, Logits, decide_command, label_figures, run_command

PREFIX = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]
TAILS = [[11, 12], [13], [14, 15, 16], [11, 12, 17]]


def readings(engine: FakeEngine, key: int) -> list[list[float]]:
    """Return the figures of a decision's prompts so far."""
    extras = [update.extra for update in engine.updates.get(key, [])]
    return [vector_of(vector) for extra in extras if extra is not None for vector in extra.vectors]


def alone(prefix: list[int], tails: list[list[int]]) -> list[list[float]]:
    """Return the figures of prompts that are read each for itself."""
    return [label_figures(Logits(prefix + tail), 2) for tail in tails]


def computed(context: FakeContext) -> int:
    return sum(len(batch.tokens) for batch in context.batches)


def end_of(engine: FakeEngine, key: int) -> RequestUpdate:
    (update,) = [each for each in engine.updates[key] if each.end is not None]
    return update


def test_each_tail_is_read_behind_the_prefix_which_is_computed_once() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    assert readings(engine, 1) == alone(PREFIX, TAILS)
    assert computed(engine.context) == len(PREFIX) + sum(map(len, TAILS))
    end = end_of(engine, 1).end
    assert end is not None
    assert end.reason == "stop"
    assert end.usage.prompt_tokens == len(PREFIX) * len(TAILS) + sum(map(len, TAILS))
    assert end.usage.prompt_tokens - end.usage.cached_tokens == computed(engine.context)


def test_the_next_decision_about_the_same_state_computes_its_tails_alone() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    before = computed(engine.context)
    others = [[20, 21], [22]]
    engine.turn(decide_command(2, PREFIX, others))
    engine.finish()
    assert readings(engine, 2) == alone(PREFIX, others)
    assert computed(engine.context) - before == 3


def test_a_decision_leaves_the_prefix_alone_in_its_sequence() -> None:
    engine = FakeEngine(FakeContext(sequences=1))
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    assert engine.context.cells == [PREFIX]


def test_an_image_behind_the_prefix_is_read_in_each_prompt_also_if_cells_had_it_at_first() -> None:
    engine = FakeEngine(FakeContext(sequences=1))
    start = len(PREFIX)
    images = [ImageSlot(start, 4, b"seen")]
    unseen, seen = [-7] * 4, [40, 50, 51, 41]  # a token, two rows, a token
    encoded = Encoded(0, [ImageRows(start + 1, seen[1:3])], [(start, seen[:1]), (start + 3, seen[3:])])
    known = decide_command(1, [*PREFIX, *unseen, 11], [[12]], images=images)
    more = decide_command(2, PREFIX, [[*unseen, 11, 12], [*unseen, 13], [*unseen, 14]], images=images)
    for command, tails in ((known, [[11, 12]]), (more, [[11, 12], [13], [14]])):
        key = command.prepared.key
        engine.turn(command)
        while engine.number_of(key) is not None:
            engine.turn(*(replace(encoded, key=key) for _ in engine.encodes))
            engine.encodes.clear()
        assert readings(engine, key) == alone([*PREFIX, *seen], tails)


def test_the_prompt_tokens_done_grow_with_each_tail() -> None:
    engine = FakeEngine(FakeContext())
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    done = [update.prompt_done for update in engine.updates[1] if update.extra is not None]
    assert done == [20, 21, 24, 27]


def test_a_decision_cancelled_between_two_questions_frees_its_sequence_at_once() -> None:
    engine = FakeEngine(FakeContext(sequences=1))
    engine.turn(decide_command(1, PREFIX, TAILS))
    while len(readings(engine, 1)) < 2:
        engine.turn()
    engine.halt(1)
    assert engine.number_of(1) is None
    assert [end.reason for end in engine.ends(1)] == [None]
    assert len(readings(engine, 1)) == 2
    engine.turn(run_command(2, [5, 6]))
    assert engine.updates[2][0].sequence == 0


@pytest.mark.parametrize("saved_bytes", [1000, 0], ids=["its cells are saved", "its cells are lost"])
def test_a_decision_parked_between_two_questions_keeps_its_readings(saved_bytes: int) -> None:
    engine = FakeEngine(FakeContext(sequences=1), saved_bytes=saved_bytes)
    engine.turn(decide_command(1, PREFIX, TAILS))
    while len(readings(engine, 1)) < 2:
        engine.turn()
    engine.park(1)
    assert engine.parked == [1]
    engine.turn(run_command(2, [5, 6], max_tokens=3))
    engine.finish()
    engine.resume(1)
    engine.finish()
    assert readings(engine, 1) == alone(PREFIX, TAILS)
    usage = end_of(engine, 1).end.usage  # type: ignore[union-attr]  # it has an end
    assert usage.cached_tokens >= 0


@pytest.mark.parametrize("parked_after", range(1, 12))
def test_wherever_it_is_parked_a_decision_reads_the_same(parked_after: int) -> None:
    engine = FakeEngine(FakeContext(sequences=1, batch_tokens=4))
    engine.turn(decide_command(1, PREFIX, TAILS))
    for _ in range(parked_after):
        engine.turn()
    if engine.number_of(1) is not None:
        engine.park(1)
        engine.resume(1)
    engine.finish()
    assert readings(engine, 1) == alone(PREFIX, TAILS)


def test_a_prompt_that_begins_like_the_decisions_state_waits_for_the_prefix_and_no_tail() -> None:
    engine = FakeEngine(FakeContext(batch_tokens=4))
    engine.turn(decide_command(1, PREFIX, TAILS), decide_command(2, PREFIX, [TAILS[0], [21]]))
    engine.finish()
    assert readings(engine, 1) == alone(PREFIX, TAILS)
    assert readings(engine, 2) == alone(PREFIX, [TAILS[0], [21]])


def test_streams_go_on_between_the_tails() -> None:
    engine = FakeEngine(FakeContext(says=lambda _: 5))
    engine.turn(run_command(1, [5, 6], max_tokens=40))
    engine.turn()
    engine.turn(decide_command(2, PREFIX, TAILS))
    between: list[int] = []
    while not engine.ends(2):
        before = len(engine.updates[1])
        engine.turn()
        between.append(len(engine.updates[1]) - before)
    assert sum(between) >= len(TAILS)


MEMORIES = [Memory(states=True), Memory(windows=True)]


@pytest.mark.parametrize("memory", MEMORIES, ids=["states", "windows"])
def test_a_model_that_cannot_be_cut_goes_back_to_a_mark_after_the_prefix(memory: Memory) -> None:
    engine = FakeEngine(FakeContext(memory=memory))
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    assert readings(engine, 1) == alone(PREFIX, TAILS)
    assert computed(engine.context) == len(PREFIX) + sum(map(len, TAILS))
    before = computed(engine.context)
    engine.turn(decide_command(2, PREFIX, [[20, 21], [22]]))
    engine.finish()
    assert readings(engine, 2) == alone(PREFIX, [[20, 21], [22]])
    assert computed(engine.context) - before == 3


@pytest.mark.parametrize("memory", MEMORIES, ids=["states", "windows"])
@pytest.mark.parametrize("early", [False, True])
def test_a_decision_keeps_its_mark_though_memory_gets_short(memory: Memory, *, early: bool) -> None:
    engine = FakeEngine(FakeContext(memory=memory))
    if early:
        engine.turn(SpareMemory(True))
    engine.turn(decide_command(1, PREFIX, TAILS), decide_command(2, PREFIX, TAILS[:2]))
    engine.turn(SpareMemory(True))
    engine.finish()
    assert [readings(engine, 1), readings(engine, 2)] == [alone(PREFIX, TAILS), alone(PREFIX, TAILS[:2])]
    assert computed(engine.context) == len(PREFIX) + sum(map(len, [*TAILS, *TAILS[:2]]))
    assert (engine.saved.bytes, engine.saved.pinned) == (0, 0)


@pytest.mark.parametrize("memory", MEMORIES, ids=["states", "windows"])
def test_a_model_without_room_for_a_mark_computes_the_prefix_again(memory: Memory) -> None:
    engine = FakeEngine(FakeContext(memory=memory), saved_bytes=0)
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    assert readings(engine, 1) == alone(PREFIX, TAILS)
    assert computed(engine.context) == len(PREFIX) * len(TAILS) + sum(map(len, TAILS))
    assert end_of(engine, 1).end.usage.cached_tokens == 0  # type: ignore[union-attr]  # it has an end


def test_a_reproducible_decision_is_cut_at_the_same_places_whatever_its_prefix() -> None:
    prompt = [1 + place % 25 for place in range(150)]
    cuts = []
    for prefix in (64, 128):
        engine = FakeEngine(FakeContext(context_tokens=200, batch_tokens=200))
        engine.turn(decide_command(1, prompt[:prefix], [prompt[prefix:140], prompt[prefix:]], reproducible=True))
        engine.finish()
        cuts.append({(batch.positions[0], len(batch.tokens)) for batch in engine.context.batches})
    assert {(0, 64), (64, 64), (128, 12), (128, 22)} == cuts[0] == cuts[1]


def test_a_decision_that_is_longer_than_the_sequences_of_this_engine_fails_as_such() -> None:
    engine = FakeEngine(FakeContext(context_tokens=20))
    engine.turn(decide_command(1, PREFIX, TAILS))
    assert [end.fault for end in engine.ends(1)] == ["context"]


def test_a_decision_that_fills_its_sequence_to_the_last_cell_is_read() -> None:
    engine = FakeEngine(FakeContext(context_tokens=21))
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    assert readings(engine, 1) == alone(PREFIX, TAILS)


def test_a_failed_decode_ends_the_decision() -> None:
    engine = FakeEngine(FakeContext(codes={1: 2}))
    engine.turn(decide_command(1, PREFIX, TAILS))
    engine.finish()
    assert [end.fault for end in engine.ends(1)] == ["decode"]


def test_a_decision_has_its_form_in_the_frame_that_runs_it() -> None:
    prepared = decide_command(1, PREFIX, TAILS).prepared
    assert isinstance(prepared, Prepared)
    assert isinstance(prepared.decision, DecisionForm)
