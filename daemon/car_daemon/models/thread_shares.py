"""How the threads of the machine are divided between the engines that compute on its cores."""

from collections.abc import Collection


class ThreadShares:
    """An engine alone has all threads that it would take; those that are busy together divide them."""

    def __init__(self) -> None:
        # Mutable state, by engine: the threads that each takes alone, and those that it was told.
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
        if len(self._alone) < 2:
            return {}
        sharing = [engine for engine in busy if engine in self._alone]
        changes = {
            engine: share
            for place, engine in enumerate(sharing)
            if (share := _share(self._alone[engine], place, len(sharing))) != self._told[engine]
        }
        self._told |= changes
        return changes


def _share(threads: int, place: int, sharers: int) -> int:
    """Return one of nearly equal parts, at least 1; the first ones get what is left over."""
    return max(1, threads // sharers + (place < threads % sharers))
