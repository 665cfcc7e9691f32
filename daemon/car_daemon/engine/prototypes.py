"""Things that are dear to build: built once by the tokenizer thread, copied by the loop when a request starts."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Prototypes(Generic[K, V]):
    """The `limit` prototypes used last; safe to use from several threads, which may build one twice."""

    def __init__(self, build: Callable[[K], V], limit: int) -> None:
        self._build = build
        self._limit = limit
        self._lock = Lock()
        # Mutable state: the prototypes, the one used last at the end.
        self._built: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V:
        """Return a prototype, built now where it is missing; what `build` raises passes through."""
        with self._lock:
            if key in self._built:
                self._built.move_to_end(key)
                return self._built[key]
        built = self._build(key)
        with self._lock:
            self._built[key] = built
            while len(self._built) > self._limit:
                self._built.popitem(last=False)
        return built

    def forget(self, key: K) -> None:
        """Let a prototype be built anew when it is asked for again."""
        with self._lock:
            self._built.pop(key, None)
