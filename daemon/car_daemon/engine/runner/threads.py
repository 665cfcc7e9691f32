"""The number of threads of an engine, which other busy engines on the same cores reduce."""

from collections.abc import Callable

from car_daemon.engine.batching.costs import StepCosts


class ThreadCount:
    """Report every change to the contexts; costs of steps are learned for each number of threads."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._contexts: list[Callable[[int], None]] = []

    def add(self, set_threads: Callable[[int], None]) -> None:
        """Set the threads of a context now and with every change."""
        self._contexts.append(set_threads)
        set_threads(self._costs.threads)

    def set(self, threads: int) -> None:
        """Compute with this number of threads from the next step on."""
        self._costs.set_threads(threads)
        for set_threads in self._contexts:
            set_threads(threads)
