"""A cache of expensive readings, for 200 ms."""

from collections.abc import Callable
from typing import Generic, TypeVar, TypeVarTuple

P = TypeVarTuple("P")
T = TypeVar("T")
# Short enough for figures that people watch, and long enough that a client in a loop costs next to nothing.
_TTL_S = 0.2


class TtlCache(Generic[*P, T]):
    """Calls `read` at most once in 200 ms with the same arguments; `clock` is in seconds."""

    def __init__(self, read: Callable[[*P], T], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._kept: dict[object, tuple[float, T]] = {}  # time and value of each reading, by its arguments

    def __call__(self, *args: *P) -> T:
        """Return the cached value, or read it."""
        now = self._clock()
        kept = self._kept.get(args)
        if kept is not None and now - kept[0] < _TTL_S:
            return kept[1]
        value = self._read(*args)
        self._kept = {key: (read_at, old) for key, (read_at, old) in self._kept.items() if now - read_at < _TTL_S}
        self._kept[args] = now, value
        return value
