"""Histograms of each model's latencies: queueing, first token, between tokens; in seconds."""

from bisect import bisect_left
from collections.abc import Callable

# Upper bounds in seconds, from a tenth of a millisecond to minutes.
BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class Histogram:
    """Counts of values by BOUNDS, with one more for values above the last bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  # of values up to each bound and above the one before it
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.counts)} values, {self.sum:.3f} s>"

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class Latencies:
    """Latencies of one model's requests."""

    def __init__(self) -> None:
        self.queued = Histogram()  # from arrival to the lease
        self.first_token = Histogram()  # from arrival to the first token
        self.between_tokens = Histogram()


class TokenClock:
    """Observes the times of one answer's tokens."""

    def __init__(self, latencies: Latencies, arrived: float, clock: Callable[[], float]) -> None:
        self._latencies = latencies
        self._clock = clock
        self.first_at: float | None = None
        self._last = arrived  # the last token's time, before any the request's

    def token(self) -> None:
        """Observe a token now."""
        now = self._clock()
        if self.first_at is None:
            self.first_at = now
            self._latencies.first_token.observe(now - self._last)
        else:
            self._latencies.between_tokens.observe(now - self._last)
        self._last = now
