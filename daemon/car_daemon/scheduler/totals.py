"""Counters of requests that always add up."""

# Which outcome an error reason counts as; every other reason is a rejection.
_FAILED = frozenset({"deadline_exceeded", "engine_lost", "slow_reader", "internal_error"})


class Totals:
    """Requests by outcome; received = completed + failed + cancelled + rejected + those in flight."""

    def __init__(self) -> None:
        self.received = 0
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.rejected = 0

    @property
    def in_flight(self) -> int:
        """Requests that have no terminal answer yet."""
        return self.received - self.completed - self.failed - self.cancelled - self.rejected

    def refuse(self) -> None:
        """Count a request that was refused before the scheduler saw it."""
        self.received += 1
        self.rejected += 1

    def count_error(self, reason: str) -> None:
        """Count a request that ended with an error."""
        if reason == "cancelled":
            self.cancelled += 1
        elif reason in _FAILED:
            self.failed += 1
        else:
            self.rejected += 1
