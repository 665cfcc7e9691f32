"""Where an answer is written: beside the others, because llama.cpp decodes neighbours together."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_engine.batching.costs import StepCosts
from car_engine.batching.reuse.neighbours import Neighbours
from car_engine.batching.sequences import Phase, SequenceTable
from tests.engine.fakes import FakeContext, FakeEngine, run_command

RISING = StepCosts({1: 1.0, 2: 1.2, 4: 1.5, 8: 2.2, 16: 3.2, 32: 5.0})
SEQUENCES, ANSWER = 24, 100


def places(*busy: int, costs: StepCosts = RISING, pads: bool = True, answer: int | None = ANSWER) -> dict[int, float]:
    """Return the seconds of all idle places beside these sequences."""
    table = SequenceTable(SEQUENCES, 4096)
    for number in busy:
        table.sequences[number].start([1, 2, 3], order=1)
    found = Neighbours(table, costs, pads=pads)
    if answer is not None:
        found.answered(answer)
    return found.seconds(table.idle)


def test_all_places_are_alike_if_nothing_runs_if_no_answer_ended_and_if_all_are_neighbours() -> None:
    assert places() == places(3, answer=None) == places(3, pads=False) == {}


def test_a_place_in_a_gap_costs_nothing_and_others_the_more_the_farther_they_are() -> None:
    found = places(4, 7)
    assert found[5] == found[6] == 0
    assert 0 < found[3] == found[8] < found[2] == found[9]


def test_a_place_far_from_all_others_costs_a_decode_of_its_own_for_each_token() -> None:
    assert places(0)[20] == pytest.approx(ANSWER * RISING.decode(1, ANSWER // 2))


def test_no_place_is_better_where_decodes_together_save_nothing() -> None:
    assert len({round(each, 6) for each in places(3, costs=StepCosts({1: 1.0, 64: 64.0})).values()}) == 1


@given(
    st.sets(st.integers(0, SEQUENCES - 1), min_size=1, max_size=8),
    st.lists(st.floats(0.1, 10), min_size=3, max_size=6),
)
def test_whatever_decodes_cost_a_nearer_place_costs_no_more(busy: set[int], seconds: list[float]) -> None:
    found = places(*busy, costs=StepCosts({2**power: each for power, each in enumerate(seconds)}))
    for number in range(min(busy) - 1, 0, -1):
        assert found[number] <= found[number - 1]
    for number in range(max(busy) + 1, SEQUENCES - 1):
        assert found[number] <= found[number + 1]
    assert min(found.values(), default=0) >= 0


def test_answers_that_come_and_go_among_many_conversations_are_written_side_by_side() -> None:
    random, engine = Random(1), FakeEngine(FakeContext(16, 256, batch_tokens=64), saved_bytes=100_000, costs=RISING)
    running: set[int] = set()
    apart: list[int] = []
    for key in range(1, 200):
        prompt = [1 + random.randrange(24) for _ in range(20)]
        engine.turn(run_command(key, prompt, random.randint(5, 40), namespace="me"))
        running.add(key)
        while len(running) >= 3:
            numbers = [each.number for each in engine.table.sequences if each.phase is Phase.DECODE]
            apart += [numbers[-1] - numbers[0] + 1 - len(numbers)] if numbers else []
            engine.turn()
            running = {each for each in running if not engine.ends(each)}
    assert sum(apart) < 0.5 * len(apart), "6.2 sequences between them where a place counts for nothing"
