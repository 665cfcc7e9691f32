"""How long requests waited, for each model: histograms that cost next to nothing to fill."""

from bisect import bisect_left
from collections.abc import Callable

# Upper bounds in seconds, from a tenth of a millisecond to minutes.
BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class Histogram:
    """Counts of values up to each of BOUNDS; what exceeds the last has a count of its own."""

    def __init__(self) -> None:
        # Mutable state: how many values fell below each bound and above the one before it, and their sum.
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class Latencies:
    """The waits of one model's requests: in the queue, for the first token, between tokens."""

    def __init__(self) -> None:
        self.queued = Histogram()
        self.first_token = Histogram()
        self.between_tokens = Histogram()


class TokenClock:
    """Takes the times of one answer's tokens."""

    def __init__(self, latencies: Latencies, arrived: float, clock: Callable[[], float]) -> None:
        self._latencies = latencies
        self._clock = clock
        # Mutable state: when the first token came, and when the last one did, or the request before any.
        self.first_at: float | None = None
        self._last = arrived

    def token(self) -> None:
        """Note that a token came."""
        now = self._clock()
        if self.first_at is None:
            self.first_at = now
            self._latencies.first_token.observe(now - self._last)
        else:
            self._latencies.between_tokens.observe(now - self._last)
        self._last = now
