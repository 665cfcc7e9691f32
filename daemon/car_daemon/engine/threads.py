"""How many threads an engine computes with: its share while others are busy on the same cores."""

from collections.abc import Callable

from car_daemon.engine.batching.costs import StepCosts


class ThreadCount:
    """Tells every change to those who compute; what steps cost is learned for each number of threads."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        # Mutable state: who hears of a change.
        self._users: list[Callable[[int], None]] = []

    def add(self, use: Callable[[int], None]) -> None:
        """Have one more set its threads, now and with every change."""
        self._users.append(use)
        use(self._costs.threads)

    def share(self, threads: int) -> None:
        """Compute with so many threads from the next step on."""
        self._costs.compute_with(threads)
        for use in self._users:
            use(threads)
