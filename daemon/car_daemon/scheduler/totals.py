"""Requests counted by outcome."""

# The reasons that count as failures; every other reason but `cancelled` is a rejection.
_FAILED = frozenset({"deadline_exceeded", "engine_lost", "slow_reader", "internal_error"})


class Totals:
    """Requests by outcome: received = completed + failed + cancelled + rejected + in flight."""

    def __init__(self) -> None:
        self.received = 0
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.rejected = 0

    def __repr__(self) -> str:
        return f"<Totals {self.received} received, {self.in_flight} in flight>"

    @property
    def in_flight(self) -> int:
        """Requests without a terminal answer."""
        return self.received - self.completed - self.failed - self.cancelled - self.rejected

    def refuse(self) -> None:
        """Count a request that was refused before it reached the scheduler."""
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
