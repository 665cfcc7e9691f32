"""Expected costs of steps, and the prompt tokens that fit a time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.engine.batching.costs import CHUNKS, PrefillTime, StepCosts

SIZES = st.integers(1, 600)
SECONDS = st.floats(0.0001, 10.0)


def test_nothing_seen_yet_costs_more_with_every_row() -> None:
    curve = StepCosts().decode
    estimates = [curve.estimate(size) for size in range(1, 20)]
    assert estimates == sorted(estimates)
    assert estimates[0] > 0


def test_the_first_observation_is_believed() -> None:
    curve = StepCosts().decode
    curve.observe(4, 0.2)
    assert curve.estimate(4) == 0.2


def test_later_observations_move_the_estimate_by_a_part() -> None:
    curve = StepCosts().decode
    curve.observe(4, 0.2)
    curve.observe(4, 0.3)
    assert curve.estimate(4) == pytest.approx(0.22)


def test_between_two_sizes_the_estimate_is_between_theirs() -> None:
    curve = StepCosts().decode
    curve.observe(4, 0.2)
    curve.observe(8, 0.6)
    assert curve.estimate(6) == pytest.approx(0.4)


def test_below_the_smallest_size_seen_the_estimate_is_its_own() -> None:
    curve = StepCosts().decode
    curve.observe(8, 0.6)
    assert curve.estimate(1) == 0.6


def test_beyond_the_largest_size_seen_the_estimate_grows_by_the_slope() -> None:
    curve = StepCosts().prefill
    curve.observe(16, 0.1)
    assert curve.estimate(32) == pytest.approx(0.2)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(SIZES, SECONDS)), SIZES)
def test_an_estimate_is_never_below_all_that_was_seen(seen: list[tuple[int, float]], size: int) -> None:
    curve = StepCosts().decode
    for known, seconds in seen:
        curve.observe(known, seconds)
    assert curve.estimate(size) >= min((seconds for _, seconds in seen), default=0.0) * 0.999


def chunk(costs: StepCosts, seconds: float, remaining: int, most: int, depth: int = 0) -> int:
    return costs.chunk(PrefillTime(seconds), remaining, most, depth)


def chunk_beside(costs: StepCosts, decoded: float, target: float, depth: int, remaining: int = 1000) -> int:
    """Return the chunk after a decode of so many seconds."""
    left = max(0.0, target - decoded)
    return costs.chunk(PrefillTime(left, decoded, left), remaining, 512, depth)


def prefill_costs(seconds_a_token: float) -> StepCosts:
    costs = StepCosts()
    for size in (1, 512):
        costs.prefill.observe(size, seconds_a_token * size)
    return costs


def test_a_rest_that_fits_the_time_is_taken_whole() -> None:
    assert chunk(prefill_costs(0.001), 0.1, 77, 512) == 77


@pytest.mark.parametrize(
    ("seconds", "length"), [(0.017, 16), (0.047, 32), (0.063, 48), (0.1, 96), (0.3, 256), (9.0, 512)]
)
def test_a_chunk_is_the_largest_quantum_that_fits_the_time(seconds: float, length: int) -> None:
    assert chunk(prefill_costs(0.001), seconds, 4000, 512) == length


def test_without_any_time_a_chunk_is_the_smallest_quantum() -> None:
    assert chunk(prefill_costs(0.001), 0.0, 4000, 512) == 16


def test_a_batch_below_the_smallest_quantum_bounds_the_chunk() -> None:
    assert chunk(prefill_costs(0.001), 0.0, 4000, 8) == 8
    assert chunk(prefill_costs(0.001), 9.0, 4000, 8) == 8


def test_a_rest_below_the_smallest_quantum_is_taken_whole_without_any_time() -> None:
    assert chunk(prefill_costs(0.001), 0.0, 5, 512) == 5


def test_chunks_are_shortened_where_the_longest_would_leave_a_short_one_that_is_dear() -> None:
    costs = StepCosts(prefill={8: 0.031, 16: 0.056, 64: 0.222, 256: 0.890})
    costs.prefill.observe(16, 0.056 + 16 * 300 * 4.4e-6, 300)
    costs.prefill.observe(96, costs.prefill.estimate(96) + 96 * 300 * 1.3e-6, 300)
    lengths, depth = list[int](), 0
    while depth < 400:
        lengths.append(chunk(costs, 0.400, 400 - depth, 512, depth))
        depth += lengths[-1]
    assert len(lengths) == 5
    assert min(lengths) >= 64


def test_chunks_stay_the_longest_where_shorter_ones_save_nothing() -> None:
    assert chunk(prefill_costs(0.001), 0.1, 400, 512) == 96


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(SIZES, SECONDS), max_size=6), SECONDS, st.integers(1, 9000), st.integers(1, 512))
def test_a_chunk_is_a_quantum_or_shorter_in_as_many_steps_or_the_rest_and_within_the_batch(
    seen: list[tuple[int, float]], seconds: float, remaining: int, most: int
) -> None:
    costs = StepCosts()
    for size, cost in seen:
        costs.prefill.observe(size, cost)
    length = chunk(costs, seconds, remaining, most)
    assert 1 <= length <= min(remaining, most)
    quanta = [size for size in (*CHUNKS, most) if length <= size <= most]
    steps = -(-remaining // length)
    equal = any(-(-remaining // size) == steps and (size - length) % CHUNKS[0] == 0 for size in quanta)
    assert equal or length == remaining
    assert length >= min(CHUNKS[0], remaining, most)


def test_what_was_measured_before_is_known_from_the_start() -> None:
    costs = StepCosts({1: 0.01, 8: 0.03}, {16: 0.02})
    assert (costs.decode.estimate(8), costs.prefill.estimate(16)) == (0.03, 0.02)


def test_a_stall_of_the_machine_does_not_make_a_size_expensive_for_ever() -> None:
    costs = StepCosts({1: 0.01, 8: 0.03}, {16: 0.02, 64: 0.05})
    costs.prefill.observe(128, 7.0)
    assert costs.prefill.estimate(128) <= 0.2
    costs.prefill.observe(64, 7.0)
    assert costs.prefill.estimate(64) <= 0.061


def test_a_chunk_deep_in_a_prompt_costs_more_and_the_begin_of_the_next_one_does_not() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.06, 256: 0.25})
    for depth in range(256, 4096, 16):
        costs.prefill.observe(16, 0.02 + 16 * depth * 2e-6, depth)
    assert costs.prefill.estimate(16, 4000) == pytest.approx(0.02 + 16 * 4000 * 2e-6, rel=0.05)
    assert costs.prefill.estimate(64, 0) == 0.06
    assert chunk(costs, 0.06, 1000, 512, depth=0) == 64
    assert chunk(costs, 0.06, 1000, 512, depth=1000) == 16


def test_chunks_of_a_few_tokens_bound_what_a_stall_made_look_expensive() -> None:
    costs = StepCosts(prefill={16: 0.02})
    costs.prefill.observe(16, 0.6, 300)
    costs.prefill.observe(2, 0.02, 400)
    assert costs.prefill.estimate(16, 400) == pytest.approx(0.02 + 16 * 0.01)
    costs.prefill.observe(2, 0.9, 400)
    assert costs.prefill.estimate(16, 400) == pytest.approx(0.02 + 16 * 0.01)


def test_a_stall_that_made_the_smallest_chunk_look_expensive_is_corrected_by_the_next_ones() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.06})
    costs.prefill.observe(16, 0.6, 300)
    for depth in range(316, 316 + 20 * 16, 16):
        length = chunk_beside(costs, 0.03, 0.12, depth)
        costs.prefill.observe(length, 0.02 * length / 16, depth)
    assert 0.03 + 0.02 * chunk_beside(costs, 0.03, 0.12, 700) / 16 <= 0.12 + 0.02


def test_what_depth_costs_is_learned_for_every_size_by_itself() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.06, 256: 0.25})
    costs.prefill.observe(16, 0.10, 2000)
    costs.prefill.observe(64, 0.22, 2000)
    assert costs.prefill.estimate(16, 2000) == pytest.approx(0.10)
    assert costs.prefill.estimate(64, 2000) == pytest.approx(0.22)


def test_a_chunk_just_below_a_size_says_nothing_of_what_that_size_costs_at_depth() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.06, 256: 0.25})
    costs.prefill.observe(64, 0.36, 2000)
    for _ in range(20):
        costs.prefill.observe(63, 0.55, 2000)
    assert costs.prefill.estimate(64, 2000) == pytest.approx(0.36)
    assert costs.prefill.estimate(60, 2000) == pytest.approx(0.55 * 60 / 63, rel=0.05)


def test_the_last_tokens_of_a_prompt_do_not_make_the_smallest_chunk_look_cheap_at_depth() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.06})
    costs.prefill.observe(16, 0.107, 2000)
    for _ in range(20):
        costs.prefill.observe(1, 0.014, 2000)
        costs.prefill.observe(2, 0.028, 2000)
        costs.prefill.observe(4, 0.037, 2000)
    assert costs.prefill.estimate(16, 2000) == pytest.approx(0.107)


def test_halves_that_look_cheap_are_taken_to_cost_half_of_what_the_whole_did() -> None:
    costs = StepCosts(prefill={16: 0.02, 32: 0.04, 64: 0.06})
    costs.prefill.observe(16, 0.019, 256)
    for depth in range(272, 2000, 32):
        costs.prefill.observe(32, 0.04 + 32 * depth * 2.5e-6, depth)
    assert costs.prefill.estimate(32, 2000) == pytest.approx(0.2, rel=0.05)
    assert costs.prefill.estimate(16, 2000) == pytest.approx(0.1, rel=0.05)
    assert chunk(costs, 0.075, 1000, 512, depth=2000) == 16


def test_chunks_of_several_prompts_cost_what_their_length_does_at_depth_and_not_what_so_many_tokens_of_one_do() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.06, 96: 0.09})
    costs.prefill.observe(96, 0.45, 2000)
    costs.prefill.observe(48, 0.75, 2000, prompts=2)
    assert costs.prefill.estimate(96, 2000) == pytest.approx(0.45)
    assert costs.prefill.estimate(48, 2000, prompts=2) == pytest.approx(0.75)
    assert costs.prefill.estimate(48, 2000) == pytest.approx(0.75 / 2, rel=0.05)


def test_a_size_never_seen_at_depth_costs_as_its_nearest_for_each_token_and_cell_and_more_below_a_tile() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.06, 256: 0.25})
    costs.prefill.observe(64, 0.22, 2000)
    assert costs.prefill.estimate(256, 2000) == pytest.approx(4 * (0.06 + 0.16))
    costs.prefill.observe(128, 0.43, 2000)
    assert costs.prefill.estimate(256, 2000) == pytest.approx(2 * 0.43)
    assert costs.prefill.estimate(16, 2000) == pytest.approx(0.02 + 2.5 * 0.16 / 4)
    costs.prefill.observe(24, 0.13, 2000)
    assert costs.prefill.estimate(48, 2000) == pytest.approx(0.253, rel=0.01)


def test_what_was_learned_near_the_start_of_a_prompt_counts_as_at_least_what_is_known_deeper() -> None:
    costs = StepCosts(prefill={16: 0.02, 32: 0.04, 48: 0.05, 64: 0.06})
    costs.prefill.observe(48, 0.06, 300)
    costs.prefill.observe(32, 0.04 + 32 * 2000 * 2e-6, 2000)
    assert costs.prefill.estimate(48, 2000) >= 48 * 2000 * 1.8e-6
    assert costs.prefill.estimate(48, 300) == pytest.approx(0.06)


def test_the_first_cost_that_is_seen_far_deeper_than_before_replaces_what_was_known() -> None:
    costs = StepCosts(prefill={16: 0.02})
    costs.prefill.observe(16, 0.02 + 16 * 256 * 2e-6, 256)
    costs.prefill.observe(16, 0.02 + 16 * 2560 * 3e-6, 2560)
    assert costs.prefill.estimate(16, 2560) == pytest.approx(0.02 + 16 * 2560 * 3e-6, rel=0.05)


def deep_costs(untiled: float, tiled: float) -> StepCosts:
    """Return costs with these prices of a cell to a token, learned after 1,000 cells."""
    costs = StepCosts(prefill={16: 0.014, 64: 0.036, 256: 0.14})
    for size in CHUNKS[:6]:
        price = tiled if size >= 64 else untiled
        costs.prefill.observe(size, costs.prefill.estimate(size) + price * size * 1000, 1000)
    return costs


def test_deep_in_a_prompt_a_chunk_exceeds_the_target_by_up_to_the_smallest_one_where_the_prompt_would_be_slow() -> None:
    costs = deep_costs(untiled=3e-6, tiled=1.1e-6)
    least = costs.prefill.estimate(16, 1000)
    length = chunk_beside(costs, 0.025, 0.08, depth=1000)
    assert length > 16
    assert 0.08 < 0.025 + costs.prefill.estimate(length, 1000) <= 0.08 + least


def test_a_prompt_that_is_read_at_half_of_its_pace_alone_keeps_to_the_target() -> None:
    costs = deep_costs(untiled=1.1e-6, tiled=1.1e-6)
    assert 0.025 + costs.prefill.estimate(chunk_beside(costs, 0.025, 0.12, depth=1000), 1000) <= 0.12


def test_a_chunk_never_costs_more_than_its_halves() -> None:
    costs = StepCosts(prefill={16: 0.02, 64: 0.9})
    assert costs.prefill.estimate(32) == pytest.approx(0.04)
    assert costs.prefill.estimate(64) == pytest.approx(0.08)


def test_where_the_machine_was_busy_while_it_was_measured_all_sizes_move_with_what_is_observed() -> None:
    costs = StepCosts({1: 0.080, 8: 0.250, 32: 0.600}, {16: 0.300, 64: 0.800})
    for _ in range(60):
        costs.decode.observe(1, 0.008)
        costs.prefill.observe(16, 0.030)
    assert costs.decode.estimate(8) == pytest.approx(0.025, rel=0.01)
    assert costs.prefill.estimate(64) == pytest.approx(0.080, rel=0.01)
    for _ in range(60):
        costs.decode.observe(8, 0.050)
    # Observed sizes stay; the others follow the nearest observed one.
    assert costs.decode.estimate(1) == pytest.approx(0.008, rel=0.01)
    assert costs.decode.estimate(32) == pytest.approx(0.120, rel=0.01)


def test_of_decoders_less_than_was_known_counts_for_more_than_more() -> None:
    costs = StepCosts({8: 0.080}, {64: 0.080})
    costs.decode.observe(8, 0.020)
    costs.prefill.observe(64, 0.020)
    assert (costs.decode.estimate(8), costs.prefill.estimate(64)) == pytest.approx((0.050, 0.068))
    costs.decode.observe(8, 0.100)
    assert costs.decode.estimate(8) == pytest.approx(0.060)


def test_a_stall_is_known_by_what_a_size_cost_at_about_the_same_depth() -> None:
    costs = StepCosts({1: 0.008, 8: 0.040}).decode
    for _ in range(5):
        costs.observe(8, 0.040, 300)
    costs.observe(8, 0.080, 320)
    assert costs.stalled(320)
    assert costs.least(8, 320) == pytest.approx(0.040, rel=0.01)


def test_what_a_size_cost_near_the_start_of_texts_gives_no_hope_deep_in_them() -> None:
    costs = StepCosts({1: 0.008, 8: 0.040}).decode
    for _ in range(5):
        costs.observe(1, 0.008, 20)
    costs.observe(1, 0.012, 400)
    costs.observe(8, 0.060, 400)
    assert not costs.stalled(400)
    assert costs.least(1, 400) == costs.estimate(1) > 0.008


def test_only_what_was_observed_counts_as_seen() -> None:
    costs = StepCosts({8: 0.080})
    assert costs.decode.seen(8) == 0
    costs.decode.observe(8, 0.080)
    assert costs.decode.seen(8) == 1


def test_what_is_learned_with_fewer_threads_is_kept_apart() -> None:
    costs = StepCosts({1: 0.010, 8: 0.040}, {16: 0.030}, threads=4)
    costs.decode.observe(8, 0.040)
    costs.set_threads(2)
    assert (costs.decode.estimate(8), costs.prefill.estimate(16)) == pytest.approx((0.080, 0.060))
    for _ in range(60):
        costs.decode.observe(8, 0.050)
        costs.prefill.observe(16, 0.040)
    costs.set_threads(4)
    assert (costs.decode.estimate(8), costs.prefill.estimate(16)) == pytest.approx((0.040, 0.030))
    costs.set_threads(2)
    assert (costs.decode.estimate(8), costs.prefill.estimate(16)) == pytest.approx((0.050, 0.040), rel=0.01)


def test_fewer_threads_that_cost_less_than_was_thought_do_not_make_the_measured_curve_wrong() -> None:
    costs = StepCosts({1: 0.010}, {}, threads=8)
    costs.set_threads(2)
    for _ in range(100):
        costs.decode.observe(1, 0.011)
    assert not costs.overrated
    costs.set_threads(8)
    assert not costs.overrated
    for _ in range(100):
        costs.decode.observe(1, 0.004)
    assert costs.overrated


FIXED_S, ROW_S = 0.002, 0.00001


def gpu_seconds(rows: int) -> float:
    """Return the time of a launch on a simulated GPU: a fixed cost, and little a row."""
    return FIXED_S + ROW_S * rows


def gpu_costs() -> StepCosts:
    """Return the costs that the calibration finds on it."""
    decode = {size: gpu_seconds(size) for size in (1, 2, 4, 8, 16, 32)}
    return StepCosts(decode, {size: gpu_seconds(size) for size in (16, 64, 256)})


@given(st.integers(16, 4096))
def test_beyond_the_measured_sizes_a_launch_keeps_its_fixed_cost(rows: int) -> None:
    costs = gpu_costs()
    assert costs.prefill.estimate(rows) == pytest.approx(gpu_seconds(rows), rel=0.001)
    assert costs.decode.estimate(rows) == pytest.approx(gpu_seconds(rows), rel=0.001)


@given(st.dictionaries(st.sampled_from((16, 64, 256)), SECONDS, min_size=2), st.integers(1, 4096))
def test_beyond_the_measured_sizes_costs_grow_at_most_in_proportion(measured: dict[int, float], more: int) -> None:
    last = max(measured)
    found = StepCosts(prefill=measured).prefill.estimate(last + more)
    assert 0 < found <= measured[last] * (last + more) / last * 1.001


@given(st.floats(0.003, 0.1), st.integers(2048, 10_000))
def test_on_a_gpu_a_chunk_amortizes_the_launch(target: float, remaining: int) -> None:
    length = chunk_beside(gpu_costs(), gpu_seconds(8), target, 0, remaining)
    assert gpu_seconds(8) + gpu_seconds(length) <= (target + gpu_seconds(16)) * 1.001
    assert length >= 48
    # A longer chunk would exceed the time, or the prompt is read at half of its pace alone with this one.
    longer = next((size for size in CHUNKS if length < size <= 512), None)
    slow = gpu_seconds(8) + gpu_seconds(length) > 2 * gpu_seconds(512) / 512 * length
    assert longer is None or gpu_seconds(longer) + gpu_seconds(8) > target + (
        0.75 * gpu_seconds(16) * 0.999 if slow else 0
    )


def test_without_any_time_the_smallest_chunk_is_read() -> None:
    assert chunk(StepCosts(prefill={16: 0.016, 64: 0.064, 256: 0.256}), 0.001, 1000, 512) == 16
