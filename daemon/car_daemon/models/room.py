"""The memory that models share: who is in it, and how much is left."""

from collections.abc import Iterable

from car_daemon.memory import MemorySource
from car_daemon.models.entry import ModelEntry


class Room:
    """Counts a model from `enter` until `leave`; `budget_bytes` is what all may use, None what is free."""

    def __init__(self, budget_bytes: int | None, read_memory: MemorySource) -> None:
        self.budget_bytes = budget_bytes
        self._read_memory = read_memory
        # Mutable state: the models that have an engine, or are about to.
        self._residents: dict[str, ModelEntry] = {}

    @property
    def residents(self) -> Iterable[ModelEntry]:
        """The models that count."""
        return self._residents.values()

    def enter(self, entry: ModelEntry) -> None:
        """Count a model, and have its engine's KV cache keep to what the budget leaves."""
        entry.budget_bytes = None
        if self.budget_bytes is not None and entry.footprint is not None:
            entry.budget_bytes = max(0, self.free() - entry.footprint.total_with(0))
        self._residents[entry.name] = entry

    def leave(self, entry: ModelEntry) -> None:
        """Stop counting a model."""
        self._residents.pop(entry.name, None)

    def free_for(self, entry: ModelEntry) -> int:
        """Return the bytes that a model may use; what it has now is free for it."""
        return self.free() + (footprint_of(entry) if entry.name in self._residents else 0)

    def free(self) -> int:
        """Return the bytes that one more model may use."""
        coming = sum(footprint_of(entry) for entry in self.residents if entry.ready is None)
        free = self._read_memory().available - coming
        if self.budget_bytes is not None:
            free = min(free, self.budget_bytes - sum(footprint_of(entry) for entry in self.residents))
        return max(0, free)


def footprint_of(entry: ModelEntry) -> int:
    """Return the bytes that a model takes: its estimate, with the KV cache that its engine made once that is known."""
    if entry.footprint is None:
        return 0
    if entry.ready is None or entry.settings.gpu_layers:
        return entry.footprint.total
    return entry.footprint.total_with(entry.ready.kv_bytes)
