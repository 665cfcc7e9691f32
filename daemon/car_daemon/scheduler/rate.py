"""How long requests hold their sequences, and from that how long a waiter has to wait."""

_WEIGHT = 0.2


class ServiceRate:
    """A moving mean of lease times in seconds."""

    def __init__(self) -> None:
        # Mutable state: the mean, None before the first lease ended.
        self._mean: float | None = None

    def observe(self, seconds: float) -> None:
        """Take one lease that ended into account."""
        self._mean = seconds if self._mean is None else self._mean + _WEIGHT * (seconds - self._mean)

    def wait(self, position: int, capacity: int) -> float | None:
        """Return the seconds until the request at a position (0 is next) may start; None before anything is known."""
        return None if self._mean is None else self._mean * (position + 1) / capacity
