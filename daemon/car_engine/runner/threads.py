"""The number of threads of an engine, which other busy engines on the same cores reduce."""

from collections.abc import Callable

from car_engine.batching.costs import StepCosts


class ThreadCount:
    """Report every change to the contexts; costs of steps are learned for each number of threads.

    llama.cpp's attention over more than 256 cells sums up by threads, so that their number changes results: while it is
    fixed, the engine computes with the number that it was loaded with.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._loaded = self._divided = costs.threads
        self._fixed = False
        self._contexts: list[Callable[[int], None]] = []

    def __repr__(self) -> str:
        return f"<ThreadCount {self._costs.threads} of {self._loaded}{' fixed' if self._fixed else ''}>"

    def add(self, set_threads: Callable[[int], None]) -> None:
        """Set the threads of a context now and with every change."""
        self._contexts.append(set_threads)
        set_threads(self._costs.threads)

    def set(self, threads: int) -> None:
        """Compute with this number of threads from the next step on, or once it is not fixed any more."""
        self._divided = threads
        self._apply()

    def fix(self, fixed: bool) -> None:
        """Fix the number of threads, or not."""
        if fixed != self._fixed:
            self._fixed = fixed
            self._apply()

    def _apply(self) -> None:
        threads = self._loaded if self._fixed else self._divided
        self._costs.set_threads(threads)
        for set_threads in self._contexts:
            set_threads(threads)
