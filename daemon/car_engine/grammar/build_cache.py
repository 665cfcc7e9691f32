"""Cache of objects that are expensive to build: built by the tokenizer thread, copied by the loop."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BuildCache(Generic[K, V]):
    """The `limit` prototypes used last; thread-safe, though two threads may build the same one."""

    def __init__(self, build: Callable[[K], V], limit: int) -> None:
        self._build = build
        self._limit = limit
        self._lock = Lock()
        self._built: OrderedDict[K, V] = OrderedDict()  # least recently used first

    def __repr__(self) -> str:
        return f"<BuildCache {len(self._built)} of {self._limit}>"

    def get(self, key: K) -> V:
        """Return a prototype, built now where it is missing; raises what `build` raises."""
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
        """Remove a prototype: the next `get` builds it anew."""
        with self._lock:
            self._built.pop(key, None)
