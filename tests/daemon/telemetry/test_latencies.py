"""Histograms of waits."""

from car_daemon.telemetry.metrics import BOUNDS, Histogram, Latencies, TokenClock


def test_a_value_counts_below_its_bound() -> None:
    histogram = Histogram()
    for value in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1], BOUNDS[-1] + 1):
        histogram.observe(value)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-2], histogram.counts[-1]) == (2, 1, 1, 1)
    assert sum(histogram.counts) == 5


def test_the_first_token_counts_from_arrival_and_the_others_from_the_one_before() -> None:
    times = iter([3.0, 3.5, 4.5])
    timings = Latencies()
    clock = TokenClock(timings, 1.0, lambda: next(times))
    for _ in range(3):
        clock.token()
    assert (clock.first_at, timings.first_token.sum, timings.between_tokens.sum) == (3.0, 2.0, 1.5)
    assert sum(timings.between_tokens.counts) == 2
