"""Requests with different adapters take turns in a context, and each has the answer that it has alone."""

import pytest

from car_base.ipc.types import NO_ADAPTERS, AdapterSet
from car_engine.batching.planner import AdapterTurns
from tests.engine.fakes import FakeContext, FakeEngine, run_command, solo

ONE: AdapterSet = (("one", 1.0),)
TWO: AdapterSet = (("one", 1.0), ("two", 0.5))


def test_a_set_that_is_alone_keeps_its_turn() -> None:
    turns = AdapterTurns()
    assert [turns.choose({ONE}, now) for now in (0.0, 0.05, 5.0)] == [ONE] * 3


def test_sets_take_turns_by_time() -> None:
    turns = AdapterTurns()
    chosen = [turns.choose({NO_ADAPTERS, ONE, TWO}, step * 0.05) for step in range(12)]
    changes = [each for before, each in zip([None, *chosen], chosen, strict=False) if each != before]
    assert set(chosen) == {NO_ADAPTERS, ONE, TWO}
    assert len(changes) >= 4
    assert changes[0] == changes[3], "each set has its turn before one has its second"


def test_a_set_without_work_gives_its_turn_away_at_once() -> None:
    turns = AdapterTurns()
    first = turns.choose({ONE, TWO}, 0.0)
    other = TWO if first == ONE else ONE
    assert turns.choose({other}, 0.001) == other


def test_a_new_set_waits_for_the_end_of_the_turn() -> None:
    turns = AdapterTurns()
    turns.choose({ONE}, 0.0)
    assert turns.choose({ONE, TWO}, 0.05) == ONE
    assert turns.choose({ONE, TWO}, 0.15) == TWO


@pytest.mark.parametrize("tick", [0.001, 0.03, 0.2])
def test_every_request_has_its_turn_and_the_answer_that_it_has_alone(tick: float) -> None:
    engine = FakeEngine(FakeContext(4), tick=tick)
    sets = (NO_ADAPTERS, ONE, TWO, ONE)
    prompts = [[3 + key, 4, 5] for key in range(4)]
    engine.turn(
        *(run_command(key, prompt, 12, adapters=sets[key], namespace="me") for key, prompt in enumerate(prompts))
    )
    engine.finish()
    assert [engine.tokens(key) for key in range(4)] == [solo(prompt, 12) for prompt in prompts]
    assert {*engine.adapted} >= {ONE, TWO}


def test_a_batch_holds_the_rows_of_one_set_alone() -> None:
    engine = FakeEngine(FakeContext(4), tick=0.02)
    engine.turn(*(run_command(key, [3 + key, 4, 5], 30, adapters=ONE if key % 2 else NO_ADAPTERS) for key in range(4)))
    while engine.table.busy:
        before = len(engine.context.batches)
        engine.turn()
        for batch in engine.context.batches[before:]:
            rows = {n % 2 for n, output in zip(batch.numbers, batch.outputs, strict=True) if output}
            assert len(rows) <= 1


def test_adapters_change_only_when_their_turn_comes() -> None:
    engine = FakeEngine(FakeContext(4), tick=0.001)
    engine.turn(*(run_command(key, [3 + key, 4, 5], 10, adapters=ONE) for key in range(4)))
    engine.finish()
    assert engine.adapted == [ONE]


def test_cells_made_with_other_adapters_are_never_reused() -> None:
    engine = FakeEngine(FakeContext(4, context_tokens=128))
    prompt = [1 + place % 26 for place in range(40)]
    cached = []
    for key, adapters in enumerate((NO_ADAPTERS, ONE, TWO, ONE)):
        engine.turn(run_command(key, prompt, 2, adapters=adapters, namespace="me"))
        engine.finish()
        cached.append(engine.ends(key)[0].usage.cached_tokens)
    assert cached == [0, 0, 0, 39]


def test_a_parked_request_goes_on_with_its_adapters() -> None:
    engine = FakeEngine(FakeContext(2), tick=0.05)
    engine.turn(run_command(1, [3, 4, 5], 10, adapters=ONE))
    engine.park(1)
    engine.turn(run_command(2, [4, 4, 5], 3))
    engine.finish()
    engine.resume(1)
    engine.finish()
    assert (engine.tokens(1), engine.adapted) == (solo([3, 4, 5], 10), [ONE, NO_ADAPTERS, ONE])
