"""Division of the machine's cores between the engines that compute on them."""

from collections.abc import Collection


class ThreadDivision:
    """An engine alone has all threads that it requested; engines that are busy together divide them.

    Together they have at most the cores that other programs leave: llama.cpp's threads wait for each other after every
    operation, so one thread without a core of its own delays all of them.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._requested: dict[int, int] = {}  # the threads of each engine when it is alone
        self._current: dict[int, int] = {}  # the threads that each engine computes with
        self.foreign = 0  # cores that other programs use

    def __repr__(self) -> str:
        return f"<ThreadDivision of {self._cores} cores, {self.foreign} foreign: {self._current}>"

    def add(self, engine: int, threads: int) -> None:
        """Count an engine that computes on the cores with this many threads."""
        self._requested[engine] = self._current[engine] = threads

    def remove(self, engine: int) -> None:
        """Forget an engine."""
        self._requested.pop(engine, None)
        self._current.pop(engine, None)

    def divide(self, busy: Collection[int]) -> dict[int, int]:
        """Return the new threads of the engines whose number changes; idle engines keep theirs."""
        sharing = sorted(engine for engine in busy if engine in self._requested)
        changes = {}
        for place, engine in enumerate(sharing):
            # The requested threads may be more than the cores; of nearly equal parts the first get the remainder.
            most = self._requested[engine]
            if self.foreign:
                most = min(most, max(1, self._cores - self.foreign))
            threads = max(1, most // len(sharing) + (place < most % len(sharing)))
            if threads != self._current[engine]:
                changes[engine] = threads
        self._current |= changes
        return changes
