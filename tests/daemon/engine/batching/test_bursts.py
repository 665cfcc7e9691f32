"""Prompts that come together without decoders: read in two parts before the first decode."""

import pytest

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.planner import StepPlanner
from car_daemon.engine.batching.table import SequenceTable
from tests.daemon.engine.batching.plans import chunks, costs_of, planner_of, table_of
from tests.daemon.engine.fakes import begin


def done(planner: StepPlanner, table: SequenceTable) -> list[int]:
    """Plan and do a prefill batch; return its sequences, empty when it is time to decode."""
    step = planner.plan(table, now=0.0)
    for chunk in step.prefill:
        completes = chunk.completes
        chunk.sequence.commit(chunk.length)
        if completes:
            chunk.sequence.accept(2)
    return [chunk.sequence.number for chunk in step.prefill]


@pytest.mark.parametrize(
    ("prompts", "batches"),
    [
        (1, [[0]]),
        (2, [[0], [1]]),
        (3, [[0], [1, 2]]),
        (4, [[0, 1], [2, 3]]),
        (7, [[0, 1, 2], [3, 4, 5, 6]]),
        (8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_prompts_that_come_together_are_read_in_two_parts_before_the_first_decode(
    prompts: int, batches: list[list[int]]
) -> None:
    planner, table = planner_of(costs_of(prefill=0.0005)), table_of(*[8] * prompts)
    assert [done(planner, table) for _ in range(len(batches) + 1)] == [*batches, []]


@pytest.mark.parametrize(
    ("oldest", "batches"),
    [
        (1, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (3, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (5, [[4, 5, 6, 7], [0, 1, 2, 3]]),
        (6, [[4, 5, 6, 7], [0, 1, 2, 3]]),
    ],
)
def test_both_parts_are_neighbours_whichever_prompt_is_the_oldest(oldest: int, batches: list[list[int]]) -> None:
    planner, table = planner_of(costs_of(prefill=0.0005)), table_of(*[8] * 8)
    table.sequences[oldest].order = 0
    assert [done(planner, table) for _ in range(3)] == [*batches, []]


def test_prompts_that_come_while_the_first_is_read_are_read_before_it_goes_on() -> None:
    planner, table = planner_of(costs_of(prefill=0.0005)), table_of(8, *[None] * 7)
    assert done(planner, table) == [0]
    for _ in range(7):
        begin(table, [1] * 8)
    assert [done(planner, table) for _ in range(3)] == [[1, 2, 3], [4, 5, 6, 7], []]


def test_a_started_answer_waits_for_others_no_longer_than_for_a_prompt_between_two_decodes() -> None:
    # A prompt takes 40 ms here. Three that wait have 100 ms together, and one would have 50, of which 80 are gone.
    planner, table = planner_of(costs_of(prefill=0.005)), table_of(*[8] * 5)
    assert [done(planner, table) for _ in range(5)] == [[0, 1], [2, 3], [], [4], []]


def test_a_started_answer_does_not_wait_for_a_prompt_that_is_not_done_then() -> None:
    planner, table = planner_of(), table_of(8, None, 4000)
    assert [done(planner, table) for _ in range(2)] == [[0], []]


def test_after_the_first_decode_prompts_and_decodes_take_turns() -> None:
    planner, table = planner_of(), table_of(8, None, None)
    assert [done(planner, table) for _ in range(2)] == [[0], []]
    for _ in range(2):
        begin(table, [1] * 8)
    assert [done(planner, table) for _ in range(3)] == [[1, 2], [], []]


def test_where_the_first_half_ends_with_its_first_token_the_other_half_is_not_cut_again() -> None:
    planner, table = planner_of(costs_of(prefill=0.0005)), table_of(*[8] * 8)
    assert done(planner, table) == [0, 1, 2, 3]
    for sequence in table.sequences[:4]:
        sequence.clear()
    assert done(planner, table) == [4, 5, 6, 7]


def test_prompts_are_read_together_where_half_of_them_cost_nearly_as_much() -> None:
    costs = StepCosts(prefill={1: 0.010, 16: 0.012, 32: 0.014, 512: 0.1})
    assert chunks(planner_of(costs).plan(table_of(8, 8, 8, 8), now=0.0)) == [(0, 8), (1, 8), (2, 8), (3, 8)]


def test_a_lone_prompt_is_no_burst_also_where_the_cost_of_depth_is_known() -> None:
    costs = costs_of()
    costs.prefill.observe(16, 0.1, 2000)
    assert chunks(planner_of(costs).plan(table_of(8), now=0.0)) == [(0, 8)]


def test_a_prompt_in_the_second_part_need_not_end_with_it() -> None:
    planner, table = planner_of(costs_of(prefill=0.0005)), table_of(8, 8, 8, 9)
    assert [done(planner, table) for _ in range(4)] == [[0, 1], [2, 3], [3], []]


def test_a_long_prompt_gets_on_beside_short_ones_that_come_again_after_two_tokens() -> None:
    planner, table = planner_of(), table_of(8, None, 4000)
    short, long = table.sequences[0], table.sequences[2]
    for _ in range(100):
        if not done(planner, table):
            short.clear()
            begin(table, [1] * 8)
    assert long.cells >= 100 / 3 / 2 * 192
