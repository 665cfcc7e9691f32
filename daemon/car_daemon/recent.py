"""Facts that are dear to read, kept for a moment."""

from collections.abc import Callable
from typing import Generic, TypeVar, TypeVarTuple

P = TypeVarTuple("P")
T = TypeVar("T")
# Nobody sees a difference, and a client that asks all the time costs next to nothing.
_KEPT_S = 0.2


class Recent(Generic[*P, T]):
    """Reads as `read` does, but the same thing no more than once in 200 ms; times in seconds of `clock`."""

    def __init__(self, read: Callable[[*P], T], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        # Mutable state: what was read with which arguments, and when.
        self._kept: dict[object, tuple[float, T]] = {}

    def __call__(self, *args: *P) -> T:
        """Return what was read last, or read it."""
        now = self._clock()
        kept = self._kept.get(args)
        if kept is not None and now - kept[0] < _KEPT_S:
            return kept[1]
        fact = self._read(*args)
        self._kept = {key: (read, old) for key, (read, old) in self._kept.items() if now - read < _KEPT_S}
        self._kept[args] = now, fact
        return fact
