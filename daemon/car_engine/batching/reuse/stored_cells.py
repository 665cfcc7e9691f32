"""Prefixes in files: which there are, and the sequences that wait for one to be read."""

from collections.abc import Callable, Sequence
from typing import Protocol

from car_engine.batching.cells import CellMover
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.kept_prefixes import KeptPrefixes
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stored_prefix import CellsRead, CellsStored, StoredPrefix, in_files
from car_engine.batching.saved_cells import SavedPrefix
from car_engine.batching.sequences import Sequence as BatchSequence


class CellStore(Protocol):
    """Reads and writes files in a thread of its own; each outcome comes as a command to the loop."""

    @property
    def found(self) -> Sequence[StoredPrefix]:
        """The prefixes that earlier engines stored."""
        ...

    @property
    def writing(self) -> bool:
        """Whether the outcome of a write is due."""
        ...

    def fits(self, size: int) -> bool:
        """Return whether cells of this size may be stored at all."""
        ...

    def read(self, stored: StoredPrefix) -> None:
        """Begin to read cells; CellsRead follows."""
        ...

    def taken(self) -> None:
        """Read on: the cells that were read last are no longer needed."""
        ...

    def write(self, saved: SavedPrefix, prefix: Prefix) -> None:
        """Begin to write cells, for a prefix as `in_files` returns it; CellsStored follows."""
        ...

    def remove(self, stored: StoredPrefix) -> None:
        """Remove a file; nothing follows."""
        ...


class StoredCells:
    """The index of the files; without a store it is empty."""

    def __init__(
        self, store: CellStore | None, cells: CellMover, costs: MoveCosts, attends_from: Callable[[int], int]
    ) -> None:
        self._store = store
        self._cells = cells
        self._costs = costs
        self._found: KeptPrefixes[StoredPrefix] = KeptPrefixes(attends_from)
        self._names: dict[str, StoredPrefix] = {}
        self._waiting: dict[StoredPrefix, dict[int, BatchSequence]] = {}  # by number, for a read that began
        self._bytes = 0
        self._hits = 0
        for stored in store.found if store is not None else ():
            self._add(stored)

    def __repr__(self) -> str:
        return f"<StoredCells files={len(self._names)} bytes={self._bytes} reads={len(self._waiting)}>"

    @property
    def counters(self) -> dict[str, float]:
        """Requests that went on from a file since the start, and the bytes of the files now."""
        return {"stored_hits": float(self._hits), "stored_bytes": float(self._bytes)}

    def longest(self, prefix: Prefix) -> tuple[int, StoredPrefix | None]:
        """Return the number of tokens that a prompt can reuse at most, and the file with them."""
        named = in_files(prefix) if self._names else None
        return (0, None) if named is None else self._found.longest(named)

    def follow(self, sequence: BatchSequence, stored: StoredPrefix) -> None:
        """Let a sequence wait for its awaited tokens of a file."""
        assert self._store is not None
        if stored not in self._waiting:
            self._waiting[stored] = {}
            self._store.read(stored)
        self._waiting[stored][sequence.number] = sequence

    def leave(self, sequence: BatchSequence) -> None:
        """Forget that a sequence waits, if it does."""
        for waiting in self._waiting.values():
            waiting.pop(sequence.number, None)

    def arrived(self, read: CellsRead) -> None:
        """Continue the sequences that wait for a file; without its cells they compute them."""
        assert self._store is not None
        waiting = self._waiting.pop(read.stored).values()
        if read.cells is None:
            self._forget(read.stored.name)
            for sequence in waiting:
                sequence.reuse(0)
        else:
            stored = read.stored
            self._costs.was_read(len(stored.prefix), read.seconds)
            saved = SavedPrefix(stored.prefix, read.cells, stored.lowest)
            restored = [self._cells.restore(saved, each, each.awaited) for each in waiting]
            self._hits += sum(restored)
            if not all(restored):
                # The checksum was right, so llama.cpp would refuse the same bytes again.
                self._forget(stored.name)
                self._store.remove(stored)
        self._store.taken()

    def stored(self, outcome: CellsStored) -> None:
        """Apply the outcome of a write; shorter prefixes that the new one contains go."""
        assert self._store is not None
        for name in outcome.removed:
            self._forget(name)
        if outcome.stored is None:
            return
        self._forget(outcome.stored.name)
        for other in self._found.replaced(outcome.stored):
            self._forget(other.name)
            self._store.remove(other)
        self._add(outcome.stored)

    def _add(self, stored: StoredPrefix) -> None:
        self._found.add(stored)
        self._names[stored.name] = stored
        self._bytes += stored.size

    def _forget(self, name: str) -> None:
        stored = self._names.pop(name, None)
        if stored is not None:
            self._found.remove(stored)
            self._bytes -= stored.size
