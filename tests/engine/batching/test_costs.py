"""Expected seconds of steps: what was measured, what steps teach, and what a stall may not."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.machines import MACHINES
from benchmarks.simulation import Machine
from car_engine.batching.costs import KNOTS, StepCosts, between
from car_engine.batching.sequences import Sequence

SIZES = st.integers(1, 3000)
SECONDS = st.floats(0.0001, 10.0)
MEASURED = st.dictionaries(st.integers(1, 512), SECONDS, min_size=1, max_size=6)


def test_without_a_measurement_more_rows_cost_more() -> None:
    estimates = [StepCosts().decode(size) for size in range(1, 20)]
    assert estimates == sorted(estimates)
    assert estimates[0] > 0


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_measured_sizes_cost_what_was_measured(machine: Machine) -> None:
    costs = machine.costs
    for rows in (1, 2, 4, 8, 16):
        assert costs.decode(rows) == pytest.approx(machine.decode_seconds(rows))
    for tokens in (8, 16, 64, 256):
        assert costs.prefill(tokens) == pytest.approx(machine.prefill_seconds(tokens, 0))


@given(MEASURED, st.integers(1, 4000))
def test_sizes_between_measured_ones_lie_between_them_and_larger_ones_cost_at_most_in_proportion(
    measured: dict[int, float], size: int
) -> None:
    seconds, last = between(measured, size), max(measured)
    if size <= last:
        assert min(measured.values()) * 0.999 <= seconds <= max(measured.values()) * 1.001
    else:
        assert measured[last] * 0.999 <= seconds <= measured[last] * size / last * 1.001


@given(MEASURED, st.lists(st.tuples(SIZES, SECONDS, st.integers(0, 5000)), max_size=30), SIZES, st.integers(0, 9000))
def test_whatever_steps_take_costs_stay_above_zero_and_grow_with_the_depth(
    measured: dict[int, float], steps: list[tuple[int, float, int]], size: int, depth: int
) -> None:
    costs = StepCosts(measured, measured)
    for rows, seconds, cells in steps:
        costs.decoded(rows, seconds, cells)
        costs.prefilled(rows, seconds, cells)
    assert 0 < costs.decode(size) <= costs.decode(size, depth)
    assert 0 < costs.prefill(size) <= costs.prefill(size, depth)


@given(st.sampled_from(KNOTS), st.floats(0.2, 5.0))
def test_a_size_that_always_takes_the_same_costs_that_soon(size: int, factor: float) -> None:
    costs = StepCosts({1: 0.01, 8: 0.03}, {16: 0.02, 256: 0.3})
    true = factor * costs.prefill(size)
    for _ in range(40):
        costs.prefilled(size, true)
    assert costs.prefill(size) == pytest.approx(true, rel=0.02)


def test_a_size_that_no_step_has_shown_costs_at_most_in_proportion_to_what_steps_show() -> None:
    costs = StepCosts({1: 0.5}, {16: 1.0})
    for _ in range(30):
        costs.decoded(1, 0.1)
    assert all(costs.decode(rows) <= 1.001 * rows * costs.decode(1) for rows in (2, 3, 8, 32))
    for _ in range(30):
        costs.decoded(8, 1.5)
    assert costs.decode(8) > 1.4, "what steps show counts, also if it is dearer"


def test_one_stall_moves_a_cost_by_less_than_half() -> None:
    costs = StepCosts({1: 0.01, 8: 0.03})
    costs.decoded(8, 30.0)
    assert costs.decode(8) < 1.5 * 0.03


def test_a_machine_that_became_slower_corrects_all_sizes_by_the_ones_in_use() -> None:
    costs = StepCosts({1: 0.008, 8: 0.025, 16: 0.04}, {16: 0.030, 64: 0.080})
    for _ in range(40):
        costs.decoded(1, 3 * 0.008)
    assert costs.decode(1) == pytest.approx(3 * 0.008, rel=0.02)
    assert costs.prefill(64) > 1.5 * 0.080


def test_the_price_of_a_cell_is_learned_apart_for_tiles_and_below_them() -> None:
    costs = StepCosts({1: 0.01}, {16: 0.02, 64: 0.06})
    for _ in range(20):
        costs.prefilled(16, 0.02 + 16 * 2000 * 2e-6, 2000)
        costs.prefilled(64, 0.06 + 64 * 2000 * 1e-6, 2000)
    assert costs.prefill(16, 4000) == pytest.approx(0.02 + 16 * 4000 * 2e-6, rel=0.01)
    assert costs.prefill(64, 4000) == pytest.approx(0.06 + 64 * 4000 * 1e-6, rel=0.01)


def test_while_one_price_of_a_cell_is_known_short_chunks_are_taken_to_pay_no_less_than_tiles() -> None:
    for known in (16, 64):
        costs = StepCosts({1: 0.01}, {16: 0.02, 64: 0.06})
        costs.prefilled(known, costs.prefill(known) + known * 300 * 2e-6, 300)
        short, tiled = ((costs.prefill(rows, 2000) - costs.prefill(rows)) / rows for rows in (16, 64))
        assert 0 < tiled <= short


def observed(costs: StepCosts, machine: Machine, requests: int, tokens: int) -> None:
    """Let the costs learn from prompts in chunks of 64 and answers of one row, one request after the other."""
    sequence = Sequence(0)
    for _ in range(requests):
        sequence.cells = 0
        while sequence.cells < tokens:
            costs.prefilled(64, machine.prefill_seconds(64, sequence.cells), sequence.cells)
            costs.decoded(1, machine.decode_seconds(1, sequence.cells), sequence.cells)
            sequence.commit(64)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_after_hundreds_of_deep_requests_every_estimate_is_near_the_truth(machine: Machine) -> None:
    costs = machine.costs
    observed(costs, machine, 300, 448)
    for rows in (1, 8):
        assert costs.decode(rows, 300) == pytest.approx(machine.decode_seconds(rows, 300), rel=0.3)
    for length in (64, 256):
        assert costs.prefill(length, 300) == pytest.approx(machine.prefill_seconds(length, 300), rel=0.3)


def test_a_price_that_is_too_high_lowers_what_rows_cost_to_half_at_most() -> None:
    costs = StepCosts({1: 0.01, 8: 0.03})
    costs.decoded(8, 0.06, 256)
    for _ in range(3):
        costs.decoded(8, 0.03, 255)
    assert costs.decode(8) > 0.03 / 2


def test_each_number_of_threads_has_a_pace_of_its_own_that_starts_in_proportion() -> None:
    costs = StepCosts({1: 0.01, 8: 0.04}, {16: 0.03}, threads=4)
    costs.set_threads(2)
    assert (costs.decode(8), costs.prefill(16)) == pytest.approx((0.08, 0.06))
    costs.set_threads(4)
    assert (costs.decode(8), costs.prefill(16)) == pytest.approx((0.04, 0.03))


def test_a_curve_of_a_busy_start_is_found_out_by_steps_with_the_same_threads_and_not_by_one() -> None:
    costs = StepCosts({1: 0.010}, {16: 0.03}, threads=8)
    costs.set_threads(2)
    for _ in range(100):
        costs.decoded(1, 0.011)
    costs.set_threads(8)
    costs.decoded(1, 0.004)
    assert not costs.overrated
    for _ in range(99):
        costs.decoded(1, 0.004)
    assert costs.overrated


def test_more_of_a_prompt_costs_more_and_so_does_a_deeper_part() -> None:
    random, costs = Random(1), StepCosts({1: 0.01}, {16: 0.02, 64: 0.06})
    costs.prefilled(64, 0.06 + 64 * 2000 * 1e-6, 2000)
    for _ in range(100):
        start, tokens, more = (random.randrange(1, 3000) for _ in range(3))
        assert costs.prompt(start, start + tokens) < costs.prompt(start, start + tokens + more)
        assert costs.prompt(start, start + tokens) < costs.prompt(start + more, start + more + tokens)
