"""How the threads of the machine are divided between the engines that compute on its cores."""

from collections.abc import Collection


class ThreadShares:
    """An engine alone has all threads that it would take; those that are busy together divide them.

    There are no more threads than other programs leave cores: llama.cpp's threads wait for each other after every
    operation, so one without a core of its own makes all of them wait.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        # Mutable state: the cores that others take; by engine, the threads that each takes alone, and those that it
        # was told.
        self.taken = 0
        self._alone: dict[int, int] = {}
        self._told: dict[int, int] = {}

    def joined(self, engine: int, threads: int) -> None:
        """Count an engine that computes on the cores, with so many threads."""
        self._alone[engine] = self._told[engine] = threads

    def left(self, engine: int) -> None:
        """Forget an engine."""
        self._alone.pop(engine, None)
        self._told.pop(engine, None)

    def divide(self, busy: Collection[int]) -> dict[int, int]:
        """Return the threads of those engines whose share is another one now."""
        sharing = [engine for engine in busy if engine in self._alone]
        changes = {
            engine: share
            for place, engine in enumerate(sharing)
            if (share := _share(self._most(engine), place, len(sharing))) != self._told[engine]
        }
        self._told |= changes
        return changes

    def _most(self, engine: int) -> int:
        """Return the threads that an engine would take alone now; explicit ones may be more than the cores."""
        alone = self._alone[engine]
        return min(alone, max(1, self._cores - self.taken)) if self.taken else alone


def _share(threads: int, place: int, sharers: int) -> int:
    """Return one of nearly equal parts, at least 1; the first ones get what is left over."""
    return max(1, threads // sharers + (place < threads % sharers))
