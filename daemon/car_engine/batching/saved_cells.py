"""Cells in host memory: of parked requests, of prefixes that were evicted from their sequence, and checkpoints."""

from collections import OrderedDict

from car_engine.batching.prefix import Checkpoint, SavedPrefix
from car_engine.batching.reuse.index import Index


class SavedCells:
    """At most `limit` bytes in all; parked requests have precedence, and the checkpoints to which running ones go back.

    Of others the least recently used goes first. If that is a checkpoint, the checkpoint goes that costs least: the
    tokens since the checkpoint before it, which are read again without it. A checkpoint that is used costs so much more
    than the last that went (the rule GreedyDual), so that an expensive one goes in the end too.
    """

    def __init__(self, limit: int, index: Index) -> None:
        self._limit = limit
        self._index = index
        self.pinned = 0  # Bytes of parked requests, and of checkpoints that are held.
        self.bytes = 0  # Of parked requests, prefixes and checkpoints.
        self._sparing = False  # whether memory is short, so that these alone have room
        self._held: dict[Checkpoint, int] = {}  # by how many running requests
        # The least recently used first; of each checkpoint its cost.
        self._kept: OrderedDict[SavedPrefix | Checkpoint, int] = OrderedDict()
        self._last_cost = 0  # of the last checkpoint that went

    def __repr__(self) -> str:
        return f"<SavedCells bytes={self.bytes}/{self._limit} pinned={self.pinned} kept={len(self._kept)}>"

    @property
    def prefixes(self) -> list[SavedPrefix]:
        """The prefixes, the least recently used first."""
        return [each for each in self._kept if isinstance(each, SavedPrefix)]

    def pin(self, size: int) -> bool:
        """Reserve room for a parked request's cells, dropping prefixes as needed; False if it does not fit."""
        if self.pinned + size > self._limit:
            return False
        self.pinned += size
        self._grow(size)
        return True

    def unpin(self, size: int) -> None:
        """Free the room of a parked request."""
        self.pinned -= size
        self.bytes -= size

    def fits(self, size: int, *, held: bool = False) -> bool:
        """Whether a prefix of this size fits beside what is pinned, and memory is at hand or it would be held."""
        return (held or not self._sparing) and self.pinned + size <= self._limit

    def hold(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint that fits until each running request that holds it has released it."""
        if checkpoint not in self._held:
            if checkpoint in self._kept:
                self._drop(checkpoint)
            self._index.put(checkpoint)
            self.pin(checkpoint.size)
        self._held[checkpoint] = self._held.get(checkpoint, 0) + 1

    def release(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint as any other, once no running request holds it."""
        self._held[checkpoint] -= 1
        if not self._held[checkpoint]:
            del self._held[checkpoint]
            self.unpin(checkpoint.size)
            self._index.drop(checkpoint)
            self.keep(checkpoint)

    def spare(self, spare: bool) -> None:
        """Drop all that no parked request needs, and keep none until memory is at hand again."""
        self._sparing = spare
        while spare and self._kept:
            self._drop(next(iter(self._kept)))

    def keep(self, item: SavedPrefix | Checkpoint) -> None:
        """Keep a checkpoint, or a prefix in place of the prefixes that it serves for; drops others if room is short."""
        if not self.fits(item.size):
            return
        for other in self._index.replaced(item) if isinstance(item, SavedPrefix) else ():
            self._drop(other)
        self._index.put(item)
        self._use(item)
        self._grow(item.size)

    def touch(self, item: SavedPrefix | Checkpoint) -> None:
        """Count an item as used now."""
        if item in self._kept:
            self._use(item)

    def _use(self, item: SavedPrefix | Checkpoint) -> None:
        cost = 0
        if isinstance(item, Checkpoint):
            before = self._index.checkpoint(item.prefix.cut(len(item.prefix) - 1))
            cost = self._last_cost + len(item.prefix) - (0 if before is None else len(before.prefix))
        self._kept[item] = cost
        self._kept.move_to_end(item)

    def _grow(self, size: int) -> None:
        self.bytes += size
        if self.bytes <= self._limit:
            return
        cost = self._kept.__getitem__
        cheapest = iter(sorted((each for each in self._kept if isinstance(each, Checkpoint)), key=cost))
        while self.bytes > self._limit:
            first = next(iter(self._kept))
            if isinstance(first, Checkpoint):
                first = next(cheapest)
                self._last_cost = cost(first)
            self._drop(first)

    def _drop(self, item: SavedPrefix | Checkpoint) -> None:
        del self._kept[item]
        self._index.drop(item)
        self.bytes -= item.size
