"""The rows of a step."""

from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.guesses.prompt_lookup import PromptLookup
from car_daemon.engine.batching.planner import Step, StepPlanner
from car_daemon.engine.batching.spans import plan_spans
from car_daemon.engine.batching.table import SequenceTable
from tests.daemon.engine.batching.plans import (
    CONTEXT,
    after_decode,
    chunks,
    costs_of,
    demand_of,
    numbers,
    padding,
    planner_of,
    table_of,
)
from tests.daemon.engine.fakes import begin


def test_an_idle_table_has_an_empty_step() -> None:
    step = planner_of().plan(table_of(None, None), now=0.0)
    assert (step.decode, step.prefill) == ([], [])


def test_every_decoder_is_in_the_step() -> None:
    assert numbers(planner_of().plan(table_of(0, None, 0, 30, 0), now=0.0)) == [0, 2, 4]


def test_a_hole_between_decoders_is_padded_where_one_run_costs_less() -> None:
    assert padding(planner_of().plan(table_of(0, 0, None, 0, None, None), now=0.0)) == [2]


def test_sequences_outside_the_decoders_get_no_padding() -> None:
    assert padding(planner_of().plan(table_of(None, 0, 0, None), now=0.0)) == []


def test_a_prefilling_sequence_in_a_hole_is_padded_as_well() -> None:
    assert padding(planner_of().plan(table_of(0, 30, 0), now=0.0)) == [1]


def test_a_hole_that_costs_more_filled_than_open_stays_open() -> None:
    costs = costs_of({1: 0.001, 3: 0.1})
    assert padding(planner_of(costs).plan(table_of(0, None, 0), now=0.0)) == []


def test_a_hole_with_a_full_sequence_in_it_is_not_padded() -> None:
    table = table_of(0, None, None, 0)
    table.sequences[2].cells = CONTEXT
    assert padding(planner_of().plan(table, now=0.0)) == []


def test_a_full_sequence_in_one_hole_leaves_the_padding_of_another() -> None:
    table = table_of(0, None, 0, None, 0)
    table.sequences[1].cells = CONTEXT
    assert padding(planner_of().plan(table, now=0.0)) == [3]


def test_a_model_that_cannot_drop_a_tail_gets_no_padding() -> None:
    assert padding(planner_of(pads=False).plan(table_of(0, None, 0), now=0.0)) == []


def test_padding_does_not_outgrow_the_batch() -> None:
    assert padding(planner_of(batch_tokens=2).plan(table_of(0, None, 0), now=0.0)) == []


def test_without_decoders_a_prompt_gets_the_time_of_an_idle_engine() -> None:
    assert chunks(planner_of().plan(table_of(4000), now=0.0)) == [(0, 192)]


def test_beside_a_decoder_a_prompt_gets_the_rest_of_the_step() -> None:
    assert chunks(after_decode(planner_of(), table_of(0, 4000))) == [(1, 32)]


def test_time_that_passed_since_the_decode_is_no_more_there_for_a_prompt() -> None:
    planner, table = planner_of(costs_of(prefill=0.0001)), table_of(0, 4000)
    lengths = []
    for paused in (0.0, 0.010, 0.020, 0.030, 0.040):
        assert planner.plan(table, now=0.0).decode
        ((_, length),) = chunks(planner.plan(table, now=0.0, paused=paused))
        lengths.append(length)
    assert lengths == [384, 256, 192, 96, 16]


def test_answers_go_on_before_a_prompt_where_a_pause_took_its_turn_but_not_twice_in_a_row() -> None:
    planner, table = planner_of(), table_of(0, 4000)
    assert planner.plan(table, now=0.0).decode
    steps = [planner.plan(table, now=0.0, paused=0.041) for _ in range(6)]
    assert [bool(step.decode) for step in steps] == [True, False, True, True, False, True]


def test_a_pause_shorter_than_the_smallest_chunk_takes_no_turn_of_a_prompt() -> None:
    # The decode leaves nothing of the target, and a chunk of 16 takes 16 ms.
    planner, table = planner_of(costs_of({1: 0.0499, 8: 0.060})), table_of(0, 4000)
    assert planner.plan(table, now=0.0).decode
    assert chunks(planner.plan(table, now=0.0, paused=0.015)) == [(1, 16)]


def test_beside_slow_decoders_a_prompt_gets_as_long_as_they_take() -> None:
    assert chunks(after_decode(planner_of(costs_of({1: 0.100})), table_of(0, 4000))) == [(1, 96)]


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


@pytest.mark.parametrize(("smallest", "length"), [(0.099, 16), (0.101, 8)])
def test_a_prompt_gets_the_smallest_chunk_where_there_is_no_time_and_half_of_it_where_that_takes_two_targets(
    smallest: float, length: int
) -> None:
    planner = planner_of(costs_of(prefill=smallest / 16))
    assert chunks(after_decode(planner, table_of(0, 4000))) == [(1, length)]


def test_a_short_prompt_is_prefilled_whole() -> None:
    step = planner_of().plan(table_of(7), now=0.0)
    assert chunks(step) == [(0, 7)]
    assert step.prefill[0].completes


TWO_ROWS_ARE_DEAR = {1: 0.008, 2: 0.020, 8: 0.024}


def test_the_last_two_tokens_of_a_lone_prompt_are_read_one_by_one_where_that_costs_less() -> None:
    planner, table = planner_of(costs_of(TWO_ROWS_ARE_DEAR)), table_of(2)
    for completes in (False, True):
        (chunk,) = planner.plan(table, now=0.0).prefill
        assert (chunk.length, chunk.completes) == (1, completes)
        table.sequences[0].commit(1)


@pytest.mark.parametrize("prompts", [(3,), (2, 2), (2, None, 2)])
def test_more_tokens_and_those_of_several_prompts_are_read_together(prompts: tuple[int | None, ...]) -> None:
    assert chunks(planner_of(costs_of(TWO_ROWS_ARE_DEAR)).plan(table_of(*prompts), now=0.0))[0][1] == prompts[0]


def test_beside_decoders_the_last_two_tokens_of_a_prompt_are_read_together() -> None:
    planner = planner_of(costs_of(TWO_ROWS_ARE_DEAR))
    assert chunks(after_decode(planner, table_of(0, 2))) == [(1, 2)]


def test_a_short_prompt_beside_a_decoder_is_read_in_halves_where_its_first_token_comes_hardly_later_by_that() -> None:
    # Sixteen tokens take 48 ms, eight 24, and the decode between them 10.
    planner, table = planner_of(costs_of(prefill=0.003), step_target=0.12), table_of(0, 16)
    assert chunks(after_decode(planner, table)) == [(1, 8)]
    table.sequences[1].commit(8)
    assert chunks(after_decode(planner, table)) == [(1, 8)]


@pytest.mark.parametrize(
    ("prompts", "eight", "length"),
    [
        ((0, 16), 0.030, 16),
        ((0, 0, 0, 16), 0.024, 16),
        ((0, 16, 16), 0.024, 16),
        ((16,), 0.024, 16),
        ((0, 34), 0.024, 34),
    ],
)
def test_prompts_are_read_whole_where_halves_take_longer_or_others_wait_too_and_where_they_are_long(
    prompts: tuple[int, ...], eight: float, length: int
) -> None:
    costs = costs_of(prefill=0.003)
    costs.prefill.observe(8, eight)
    planner, table = planner_of(costs, step_target=0.12), table_of(*prompts)
    step = after_decode(planner, table) if 0 in prompts else planner.plan(table, now=0.0)
    assert {each for _, each in chunks(step)} == {length}


def test_a_chunk_in_the_middle_of_a_prompt_does_not_complete_it() -> None:
    assert not planner_of().plan(table_of(4000), now=0.0).prefill[0].completes


def test_equal_chunks_of_neighbours_share_a_step() -> None:
    assert chunks(after_decode(planner_of(), table_of(0, 10, 10, 10))) == [(1, 10), (2, 10), (3, 10)]


def test_where_prompts_do_not_share_a_batch_each_is_read_alone_and_none_is_forgotten() -> None:
    planner, table = planner_of(batches_prompts=False), table_of(16, 16, 16, 16)
    read: list[int] = []
    while len(read) < 4:
        [chunk] = planner.plan(table, now=0.0).prefill
        read.append(chunk.sequence.number)
        chunk.sequence.commit(chunk.length)
        chunk.sequence.accept(2)
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


@settings(derandomize=True, deadline=None)
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


def test_a_run_is_filled_up_where_a_larger_one_costs_less() -> None:
    costs = costs_of({1: 0.010, 7: 0.031, 8: 0.025})
    step = planner_of(costs).plan(table_of(0, 0, 0, 0, 0, 0, 0, None), now=0.0)
    assert (shapes(step), padding(step)) == ([8], [7])


def test_the_runs_follow_costs_that_change_while_the_same_sequences_decode() -> None:
    costs, table = costs_of(STEEP), table_of(0, 0)
    planner = planner_of(costs)
    assert shapes(planner.plan(table, now=0.0)) == [1, 1]
    for _ in range(40):
        costs.decode.observe(2, 0.006)
    assert [2] in [shapes(planner.plan(table, now=0.0)) for _ in range(17)]


def test_padding_goes_to_no_sequence_that_became_full() -> None:
    costs = costs_of({1: 0.010, 7: 0.031, 8: 0.025})
    table, planner = table_of(0, 0, 0, 0, 0, 0, 0, None), planner_of(costs)
    assert padding(planner.plan(table, now=0.0)) == [7]
    table.sequences[7].cells = CONTEXT
    assert padding(planner.plan(table, now=0.0)) == []


def test_a_size_that_is_avoided_is_tried_soon_then_now_and_then() -> None:
    planner, table = planner_of(costs_of(STEEP)), table_of(0, 0)
    seen = [shapes(planner.plan(table, now=0.0)) for _ in range(200)]
    assert [step for step, rows in enumerate(seen, 1) if rows == [2]] == [2, 6, 14, 30, 62, 126, 190]


def test_a_size_that_is_avoided_since_a_stall_is_tried_at_the_same_steps() -> None:
    costs = costs_of({1: 0.0070, 2: 0.0180, 3: 0.0190, 4: 0.0208})
    planner, table = planner_of(costs), table_of(0, 0, 0, 0)
    assert shapes(planner.plan(table, now=0.0)) == [4]
    for _ in range(10):
        costs.decode.observe(4, 0.08)
    seen = [shapes(planner.plan(table, now=0.0)) for _ in range(96)]
    avoided = [step for step, rows in enumerate(seen) if rows == [4]]
    begun = next(step for step, rows in enumerate(seen) if rows != [4])
    assert [step - begun + 1 for step in avoided if step > begun] == [2, 6, 14, 30, 62]


def test_a_size_is_not_avoided_for_what_was_measured_once_at_the_start() -> None:
    costs = StepCosts({1: 0.005, 2: 0.015})
    planner, table = planner_of(costs), table_of(0, 0)
    assert [shapes(planner.plan(table, now=0.0)) for _ in range(5)] == [[2]] * 5
    for _ in range(3):
        costs.decode.observe(2, 0.015)
    assert shapes(planner.plan(table, now=0.0)) == [1, 1]


def test_a_size_that_was_slow_once_is_used_again_soon_after_it_was_seen_to_be_fast() -> None:
    costs, table = costs_of({1: 0.007, 8: 0.080}), table_of(*[0] * 8)
    planner = planner_of(costs)
    for _ in range(200):
        step = planner.plan(table, now=0.0)
        if shapes(step) == [8]:
            costs.decode.observe(8, 0.025)
    assert shapes(planner.plan(table, now=0.0)) == [8]


class Stall(NamedTuple):
    """The machine takes `factor` times as long for this many steps, for decodes of at least so many rows."""

    steps: int
    factor: float
    rows: int = 1


def decoded(planner: StepPlanner, costs: StepCosts, seconds: list[float], count: int, steps: int) -> float:
    """Return the time of steps of `count` decoders, which the costs learn; a decode takes `seconds` by its rows."""
    table, total = table_of(*[0] * count), 0.0
    for _ in range(steps):
        for batch in planner.plan(table, now=0.0).decode:
            costs.decode.observe(batch.rows, seconds[batch.rows])
            total += seconds[batch.rows]
    return total


@given(
    st.lists(st.sampled_from([-1, 0.5, 2, 4, 8]), min_size=2, max_size=8),
    st.builds(Stall, st.integers(0, 80), st.sampled_from([1.5, 2, 3, 5]), st.integers(1, 2)),
)
@example([11, 1, 1.8], Stall(20, 4))  # Four rows cost less than three and one: the stall hit the four.
@example([11], Stall(1, 2))  # Two rows cost more than twice one: the stall hit single rows.
@example([11, 1, 1.8], Stall(300, 1.8, 2))  # Single rows cost less meanwhile.
@settings(derandomize=True, deadline=None, max_examples=60)
def test_soon_after_a_stall_decodes_are_nearly_the_cheapest_that_there_are(more: list[float], stall: Stall) -> None:
    count = len(more) + 1
    seconds = [0.0, *(each / 1000 for each in accumulate(more, initial=7))]
    assume(min(seconds[1:]) > 0)
    costs = costs_of(dict(enumerate(seconds[1:], 1)))
    planner = planner_of(costs)
    decoded(planner, costs, seconds, count, 50)
    slow = [(stall.factor if rows >= stall.rows else 1) * each for rows, each in enumerate(seconds)]
    decoded(planner, costs, slow, count, stall.steps)
    decoded(planner, costs, seconds, count, 100)
    spans = plan_spans(range(count), can_pad=lambda _: False, cost=seconds.__getitem__, most=count)
    cheapest = sum(seconds[high - low + 1] for low, high in spans)
    assert decoded(planner, costs, seconds, count, 200) < 1.1 * 200 * cheapest


def test_a_try_of_a_size_that_is_avoided_has_no_guesses() -> None:
    costs = costs_of({1: 0.005, 2: 0.015, 4: 0.016, 8: 0.017})
    planner, table = planner_of(costs), table_of(0, 0)
    for sequence in table.sequences:
        sequence.lookup = PromptLookup([5, 6, 7, 8] * 8)
    guessed = set()
    for _ in range(60):
        guessed |= {
            (batch.rows // (1 + batch.guessed), batch.guessed > 0) for batch in planner.plan(table, now=0.0).decode
        }
    assert (1, True) in guessed
    assert (2, False) in guessed
    assert (2, True) not in guessed


def test_a_plan_that_promises_a_few_percent_is_not_worth_it() -> None:
    assert shapes(planner_of(costs_of({1: 0.0072, 2: 0.0150})).plan(table_of(0, 0), now=0.0)) == [2]


@pytest.mark.parametrize(("prompts", "length"), [(1, 96), (2, 128), (3, 192), (4, 192), (5, 256), (6, 256)])
def test_prompts_beside_slow_decoders_get_as_long_as_these_take_and_half_of_it_more_for_each_that_waits(
    prompts: int, length: int
) -> None:
    # Decoders take 100 ms here, and a token of a prompt 1 ms; chunks are ..., 96, 128, 192, 256, 384.
    planner = planner_of(costs_of({1: 0.100}))
    assert chunks(after_decode(planner, table_of(0, *[4000] * prompts))) == [(1, length)]


@pytest.mark.parametrize(("prompts", "length"), [(1, 32), (2, 64), (3, 64), (4, 96), (5, 128), (6, 128)])
def test_the_target_of_a_step_grows_by_half_for_each_prompt_that_waits_up_to_three_times(
    prompts: int, length: int
) -> None:
    # 50 ms are the target here, decoders take 10 ms of it, and a token of a prompt takes 1 ms.
    assert chunks(after_decode(planner_of(), table_of(0, *[4000] * prompts))) == [(1, length)]


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
        costs.prefill.observe(16, 0.016 + 16 * 2000 * 5e-6, 2000)
    table = table_of(16, 2016)
    table.sequences[1].commit(2000)
    planner = StepPlanner(costs, 512, step_target=0.05, idle_target=0.1, pads=True)
    # Each alone would take 16 and 176 ms, both together 192, though the first one is at its start.
    assert chunks(planner.plan(table, now=0.0)) == [(0, 16)]
