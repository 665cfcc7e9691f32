"""Prefixes in files: which there are, and the sequences that wait for one to be read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from car_engine.batching.cells import CellMover
from car_engine.batching.prefix import Checkpoint, Prefix, SavedPrefix
from car_engine.batching.reuse.index import Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stored_prefix import CellsRead, CellsStored, Contents, StoredPrefix
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

    def read_ahead(self) -> bool:
        """Read a piece of the files that were used last into the system's memory; False if none is left."""
        ...

    def taken(self) -> None:
        """Read on: the cells that were read last are no longer needed."""
        ...

    def write(self, contents: Contents, prefix: Prefix) -> None:
        """Begin to write cells and states, for a prefix as `in_files` returns it; CellsStored follows."""
        ...

    def remove(self, stored: StoredPrefix) -> None:
        """Remove a file; nothing follows."""
        ...


class StoredCells:
    """The files, and the sequences that wait for them; without a store there are none."""

    def __init__(self, store: CellStore | None, index: Index, cells: CellMover, costs: MoveCosts) -> None:
        self._store = store
        self._index = index
        self._cells = cells
        self._costs = costs
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

    def follow(self, sequence: BatchSequence, stored: StoredPrefix, tokens: int) -> None:
        """Let a sequence wait for tokens of a file."""
        assert self._store is not None
        sequence.awaited = tokens
        if stored not in self._waiting:
            self._waiting[stored] = {}
            self._store.read(stored)
        self._waiting[stored][sequence.number] = sequence

    def leave(self, sequence: BatchSequence) -> None:
        """Forget that a sequence waits, if it does."""
        for waiting in self._waiting.values():
            waiting.pop(sequence.number, None)

    def arrived(self, read: CellsRead) -> None:
        """Continue the sequences that wait for a file, without it with other cells that are there."""
        assert self._store is not None
        waiting = self._waiting.pop(read.stored).values()
        if read.contents is None:
            self._forget(read.stored.name)
            for sequence in waiting:
                self._cells.supply(sequence)
        else:
            stored = read.stored
            self._costs.was_read(len(stored.prefix), read.seconds)
            saved = SavedPrefix(stored.prefix, read.contents.cells, len(stored.prefix))
            restored = [self._restored(saved, read.contents, each) for each in waiting]
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
        for other in self._index.replaced(outcome.stored):
            self._forget(other.name)
            self._store.remove(other)
        self._add(outcome.stored)

    def _restored(self, saved: SavedPrefix, contents: Contents, sequence: BatchSequence) -> bool:
        """Continue a sequence with cells, and keep the states of a file for the requests after it; False if refused."""
        assert sequence.prefix is not None
        own = replace(saved.prefix, namespace=sequence.prefix.namespace)
        states = {own.cut(tokens): state for tokens, state in contents.states.items()}
        self._cells.keep_states(states)
        # Host memory may have no room for the state from which it goes on.
        known = self._index.checkpoint(own.cut(sequence.awaited))
        usable = [Checkpoint(each, state) for each, state in states.items() if len(each) <= sequence.awaited]
        usable += [known] if known is not None else []
        self._cells.target = max(usable, key=lambda each: len(each.prefix), default=None)
        restored = self._cells.restore(saved, sequence, sequence.awaited)
        self._cells.target = None
        return restored

    def _add(self, stored: StoredPrefix) -> None:
        self._index.put(stored)
        self._names[stored.name] = stored
        self._bytes += stored.size

    def _forget(self, name: str) -> None:
        stored = self._names.pop(name, None)
        if stored is not None:
            self._index.drop(stored)
            self._bytes -= stored.size
