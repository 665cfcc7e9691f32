"""Cells are stored while the engine is idle, and at once when it ends; files are read ahead while it is idle."""

from collections.abc import Callable
from threading import Event

from car_engine.batching.prefix_cache import PrefixCache
from car_engine.batching.reuse.stored_prefix import CellsRead, CellsStored
from car_engine.batching.sequences import SequenceTable

# Between two turns of a conversation most users need longer, but the cells of a killed engine are lost.
IDLE_S = 2.0
# A request that comes meanwhile waits for the copy of one sequence at most.
_MOST_COPY_S = 0.5
# A promise: reading ahead takes at most 2% of a core, which copies the 1 MiB of a piece in a millisecond.
AHEAD_S = 0.05


class StoreAll:
    """Store what is worth it at once, because the engine ends; `done` is set once nothing is left."""

    def __init__(self) -> None:
        self.done = Event()


Storage = CellsRead | CellsStored | StoreAll


class IdleStoring:
    """Decides when the loop, which has nothing else to do, stores cells and has files read ahead."""

    def __init__(self, cache: PrefixCache, table: SequenceTable, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._table = table
        self._clock = clock
        self._seen = 0  # requests that had started when the engine became idle
        self._since = 0.0  # when that was
        self._end: StoreAll | None = None

    def apply(self, command: Storage) -> None:
        """Apply what was read or written; from the command to store all on there is no delay."""
        match command:
            case CellsRead():
                self._cache.stored.arrived(command)
            case CellsStored():
                self._cache.stored.stored(command)
            case StoreAll():
                self._end = command

    def wait_s(self) -> float | None:
        """Store cells or read ahead if it is time to; return the seconds until then, None if a command has to come."""
        if not self._cache.storing.ready:
            return None
        now = self._clock()
        if self._table.started != self._seen:
            self._seen, self._since = self._table.started, now
        left = self._since + IDLE_S - now
        if left > 0 and self._end is None:
            return left
        ending = self._end
        if self._cache.storing.store_next(_MOST_COPY_S, ending=ending is not None):
            return None
        if ending is not None:
            ending.done.set()
            return None
        return AHEAD_S if self._cache.storing.read_ahead() else None
