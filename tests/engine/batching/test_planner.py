"""The rows of a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_engine.batching.costs import StepCosts
from car_engine.batching.planner import Step, StepPlanner
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import SequenceTable
from tests.engine.batching.plans import (
    CONTEXT,
    IDLE_TARGET_S,
    STEP_TARGET_S,
    after_decode,
    chunks,
    costs_of,
    demand_of,
    numbers,
    padding,
    planner_of,
    table_of,
)
from tests.engine.fakes import begin


def test_an_idle_table_has_an_empty_step() -> None:
    step = planner_of().plan(table_of(None, None), now=0.0)
    assert (step.decode, step.prefill) == ([], [])


def test_every_decoder_is_in_the_step() -> None:
    assert numbers(planner_of().plan(table_of(0, None, 0, 30, 0), now=0.0)) == [0, 2, 4]


def test_a_hole_between_decoders_is_padded() -> None:
    assert padding(planner_of().plan(table_of(0, 0, None, 0, None, None), now=0.0)) == [2]


def test_sequences_outside_the_decoders_get_no_padding() -> None:
    assert padding(planner_of().plan(table_of(None, 0, 0, None), now=0.0)) == []


def test_a_prefilling_sequence_in_a_hole_is_padded_as_well() -> None:
    assert padding(planner_of().plan(table_of(0, 30, 0), now=0.0)) == [1]


def test_a_hole_with_a_full_sequence_in_it_is_not_padded() -> None:
    table = table_of(0, None, None, 0)
    table.sequences[2].cells = CONTEXT
    assert padding(planner_of().plan(table, now=0.0)) == []


def test_a_full_sequence_in_one_hole_leaves_the_padding_of_another() -> None:
    table = table_of(0, None, 0, None, 0)
    table.sequences[1].cells = CONTEXT
    assert padding(planner_of().plan(table, now=0.0)) == [3]


def test_a_model_that_cannot_drop_a_tail_gets_no_padding() -> None:
    assert padding(planner_of(memory=Memory(states=True)).plan(table_of(0, None, 0), now=0.0)) == []


def test_padding_does_not_outgrow_the_batch() -> None:
    assert padding(planner_of(batch_tokens=2).plan(table_of(0, None, 0), now=0.0)) == []


def length_of(step: Step) -> int:
    """Return the length of a step's one chunk."""
    ((_, length),) = chunks(step)
    return length


def assert_fills(length: int, costs: StepCosts, seconds: float) -> None:
    """Check that a chunk takes at most the time that there is for it, and more than half of that."""
    assert seconds / 2 < costs.prefill(length) <= seconds


def test_without_decoders_a_prompt_fills_the_time_of_an_idle_engine() -> None:
    assert_fills(length_of(planner_of().plan(table_of(4000), now=0.0)), costs_of(), IDLE_TARGET_S)


def test_beside_a_decoder_a_prompt_fills_the_rest_of_the_step() -> None:
    costs = costs_of()
    assert_fills(length_of(after_decode(planner_of(), table_of(0, 4000))), costs, STEP_TARGET_S - costs.decode(1))


def test_time_that_passed_since_the_decode_is_no_more_there_for_a_prompt() -> None:
    costs, table = costs_of(prefill=0.0001), table_of(0, 4000)
    planner = planner_of(costs)
    for paused in (0.0, 0.010, 0.020, 0.030):
        assert planner.plan(table, now=0.0).decode
        length = length_of(planner.plan(table, now=0.0, paused=paused))
        assert_fills(length, costs, STEP_TARGET_S - costs.decode(1) - paused)


def test_beside_slow_decoders_a_prompt_gets_as_long_as_they_take() -> None:
    costs = costs_of({1: 2 * STEP_TARGET_S})
    assert_fills(length_of(after_decode(planner_of(costs), table_of(0, 4000))), costs, costs.decode(1))


def test_decodes_and_prefill_batches_take_turns() -> None:
    planner, table = planner_of(), table_of(0, 4000)
    steps = [planner.plan(table, now=0.0) for _ in range(4)]
    assert [bool(step.decode) for step in steps] == [True, False, True, False]
    assert [bool(step.prefill) for step in steps] == [False, True, False, True]


def test_a_prompt_that_comes_while_others_decode_is_prefilled_before_their_next_decode() -> None:
    planner, table = planner_of(), table_of(0, None)
    assert numbers(planner.plan(table, now=0.0)) == [0]
    begin(table, [1] * 4000)
    assert chunks(planner.plan(table, now=0.0)) == [(1, 32)]


def test_where_every_decoder_has_just_ended_a_prompt_has_the_time_of_an_idle_engine() -> None:
    planner, table = planner_of(), table_of(0, 4000)
    assert numbers(planner.plan(table, now=0.0)) == [0]
    table.sequences[0].clear()
    assert chunks(planner.plan(table, now=0.0)) == [(1, 192)]


def test_a_short_prompt_is_prefilled_whole() -> None:
    step = planner_of().plan(table_of(7), now=0.0)
    assert chunks(step) == [(0, 7)]
    assert step.prefill[0].completes


def test_a_chunk_in_the_middle_of_a_prompt_does_not_complete_it() -> None:
    assert not planner_of().plan(table_of(4000), now=0.0).prefill[0].completes


def test_equal_chunks_of_neighbours_share_a_step() -> None:
    assert chunks(after_decode(planner_of(), table_of(0, 10, 10, 10))) == [(1, 10), (2, 10), (3, 10)]


def test_where_prompts_do_not_share_a_batch_each_is_read_alone_and_none_is_forgotten() -> None:
    planner, table = planner_of(batches_prompts=False), table_of(16, 16, 16, 16)
    read: list[int] = []
    while len(read) < 4:
        for chunk in planner.plan(table, now=0.0).prefill:
            read.append(chunk.sequence.number)
            chunk.sequence.commit(chunk.length)
            chunk.sequence.accept(2)
        assert len(read) == len(set(read))
    assert sorted(read) == [0, 1, 2, 3]


def test_only_consecutive_sequences_share_a_step() -> None:
    assert chunks(planner_of().plan(table_of(20, None, 20, None, 20, None, 20), now=0.0)) == [(0, 20)]


def test_chunks_of_unequal_length_do_not_share_a_step() -> None:
    assert chunks(planner_of().plan(table_of(20, 12), now=0.0)) == [(0, 20)]


def test_a_longer_neighbour_shares_with_a_chunk_of_the_same_length() -> None:
    assert chunks(after_decode(planner_of(), table_of(0, 20, 30))) == [(1, 20), (2, 20)]


def test_shared_chunks_stay_within_the_time() -> None:
    costs = costs_of(prefill=0.005)
    assert chunks(planner_of(costs).plan(table_of(*[16] * 6), now=0.0)) == [(0, 16), (1, 16)]


def test_shared_chunks_stay_within_the_batch() -> None:
    assert chunks(planner_of(batch_tokens=40).plan(table_of(*[16] * 6), now=0.0)) == [(0, 16), (1, 16)]


def turns(planner: StepPlanner, table: SequenceTable, steps: int) -> list[int]:
    """Return the sequence that leads each of the next steps, none of which is committed."""
    return [chunks(planner.plan(table, now=0.0))[0][0] for _ in range(steps)]


def test_prompts_of_one_length_are_read_one_after_the_other() -> None:
    assert turns(planner_of(), table_of(4000, None, 4000, None, 4000), 6) == [0] * 6


def test_a_prompt_that_is_done_soonest_takes_turns_with_the_oldest() -> None:
    assert turns(planner_of(), table_of(4000, None, 3000, None, 400, None, 2000), 4) == [0, 4, 0, 4]


def test_of_prompts_that_are_done_as_soon_the_older_has_the_turn() -> None:
    assert turns(planner_of(), table_of(4000, None, 400, None, 400), 4) == [0, 2, 0, 2]


PROMPTS = st.lists(st.one_of(st.none(), st.just(0), st.integers(1, 600)), min_size=1, max_size=8)


@given(PROMPTS, st.sampled_from([8, 16, 40, 512]), st.floats(0.0001, 0.1), st.floats(0.0001, 0.1))
def test_a_decode_holds_every_decoder_and_what_follows_it_prompts_and_both_stay_within_the_batch(
    prompts: list[int | None], batch_tokens: int, decode: float, prefill: float
) -> None:
    table = table_of(*prompts)
    planner = planner_of(costs_of({1: decode, 8: 2 * decode}, prefill), batch_tokens=batch_tokens)
    step = planner.plan(table, now=0.0)
    assert numbers(step) == [sequence.number for sequence in demand_of(table).decoding]
    assert not set(padding(step)) & set(numbers(step))
    for run in step.decode:
        taken = sorted([*run.padding, *(sequence.number for sequence in run.sequences)])
        assert taken == list(range(taken[0], taken[0] + run.rows))
        assert run.rows <= batch_tokens
    if step.decode and demand_of(table).prefilling:
        assert not step.prefill
        step = planner.plan(table, now=0.0)
        assert not step.decode
    assert sum(chunk.length for chunk in step.prefill) <= batch_tokens
    assert len({chunk.length for chunk in step.prefill}) <= 1
    prompts_in = [chunk.sequence.number for chunk in step.prefill]
    assert (
        prompts_in == list(range(prompts_in[0], prompts_in[0] + len(prompts_in)))
        if prompts_in
        else not demand_of(table).prefilling
    )


@pytest.mark.parametrize("batch_tokens", [1, 8, 15])
def test_a_batch_below_the_smallest_chunk_is_not_exceeded(batch_tokens: int) -> None:
    assert chunks(planner_of(batch_tokens=batch_tokens).plan(table_of(100), now=0.0)) == [(0, batch_tokens)]


# Two rows cost more than twice one here.
STEEP = {1: 0.005, 2: 0.015, 8: 0.025}


def shapes(step: Step) -> list[int]:
    return [run.rows for run in step.decode]


def test_decoders_go_one_by_one_where_that_costs_less_than_together() -> None:
    assert shapes(planner_of(costs_of(STEEP)).plan(table_of(0, 0), now=0.0)) == [1, 1]


def test_decoders_that_are_cheaper_apart_are_tried_together_in_less_than_one_step_of_a_hundred() -> None:
    planner, table = planner_of(costs_of(STEEP)), table_of(0, 0)
    steps = [shapes(planner.plan(table, now=0.0)) for _ in range(1000)]
    assert 0 < steps.count([2]) < 10
    assert steps.count([1, 1]) == 1000 - steps.count([2])


def test_decoders_go_together_again_once_that_was_seen_to_cost_less() -> None:
    costs, table = costs_of({1: 0.007, 8: 0.080}), table_of(*[0] * 8)
    planner = planner_of(costs)
    for _ in range(1000):
        for batch in planner.plan(table, now=0.0).decode:
            costs.decoded(batch.rows, 0.007 if batch.rows == 1 else 0.025, 10)
    assert shapes(planner.plan(table, now=0.0)) == [8]


@pytest.mark.parametrize("gap", [7, 8])
def test_a_run_goes_on_over_a_gap_that_costs_no_more_than_another_decode(gap: int) -> None:
    step = planner_of(costs_of({1: 0.010, 16: 0.011})).plan(table_of(0, *[None] * gap, 0), now=0.0)
    assert shapes(step) == ([2 + gap] if gap <= 7 else [1, 1])


def test_a_plan_that_promises_a_few_percent_is_not_worth_it() -> None:
    assert shapes(planner_of(costs_of({1: 0.0072, 2: 0.0150})).plan(table_of(0, 0), now=0.0)) == [2]


@pytest.mark.parametrize("decode", [0.010, 0.100])
def test_the_more_prompts_wait_the_longer_are_their_chunks_up_to_three_times_the_time_of_one(decode: float) -> None:
    costs = costs_of({1: decode})
    lengths = [length_of(after_decode(planner_of(costs), table_of(0, *[4000] * prompts))) for prompts in range(1, 9)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    assert costs.prefill(lengths[-1]) <= 3 * max(STEP_TARGET_S, decode)


def test_a_decode_with_other_adapters_is_no_reason_to_prefill() -> None:
    planner, table = planner_of(), table_of(0, 0, 300, 300)
    table.sequences[0].adapters = (("other", 1.0),)
    assert numbers(planner.plan(table, now=0.0)) == [0]
    # In the next turn the decoder of the set comes first, and then its prompts.
    assert numbers(planner.plan(table, now=0.1)) == [1]
    assert planner.plan(table, now=0.15).prefill


def test_each_set_of_adapters_has_its_own_turns_of_the_oldest_and_the_soonest_done() -> None:
    planner, table = planner_of(), table_of(400, 300, 400, 300)
    other = (("other", 1.0),)
    for sequence in table.sequences[:2]:
        sequence.adapters = other
    leads = []
    for turn in range(4):
        ((number, _),) = chunks(planner.plan(table, now=turn * 0.1))
        leads.append(number)
    assert leads == [0, 2, 1, 3]


def test_neighbours_that_are_deep_in_their_prompts_count_with_their_depth() -> None:
    costs = costs_of(prefill=0.001)
    for _ in range(60):
        costs.prefilled(16, 0.016 + 16 * 2000 * 5e-6, 2000)
    table = table_of(16, 2016)
    table.sequences[1].commit(2000)
    planner = StepPlanner(costs, 512, step_target=0.05, idle_target=0.1, memory=Memory())
    # Each alone would take 16 and 176 ms, both together 192, though the first one is at its start.
    assert chunks(planner.plan(table, now=0.0)) == [(0, 16)]


def test_a_prompt_that_yields_is_read_once_no_answer_is_written() -> None:
    planner, table = planner_of(), table_of(0, 4000)
    table.sequences[1].yields = True
    for _ in range(3):
        assert planner.plan(table, now=0.0).decode
    table.sequences[0].clear()
    assert_fills(length_of(planner.plan(table, now=0.0)), costs_of(), IDLE_TARGET_S)


def test_a_prompt_that_yields_holds_back_no_other_prompt() -> None:
    table = table_of(0, 4000, 20)
    table.sequences[1].yields = True
    ((sequence, length),) = chunks(after_decode(planner_of(), table))
    assert (sequence, length) == (2, 20)
