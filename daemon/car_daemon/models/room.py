"""The memory that models share: who is in it, and how much is left."""

from collections.abc import Iterable

from car_daemon.devices import CPU
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
        """Count a model, and have the KV caches of its engines keep to what is left for them."""
        replicas = len(entry.configured.places)
        entry.budget_bytes = None
        # Several engines that are loaded at once would each find the same memory free.
        if entry.footprint is not None and (self.budget_bytes is not None or replicas > 1):
            entry.budget_bytes = max(0, self.free() - entry.footprint.total_with(0)) // replicas
        self._residents[entry.name] = entry

    def leave(self, entry: ModelEntry) -> None:
        """Stop counting a model."""
        self._residents.pop(entry.name, None)

    def free_for(self, entry: ModelEntry) -> int:
        """Return the bytes that a model may use; what it has now is free for it."""
        return self.free() + (footprint_of(entry) if entry.name in self._residents else 0)

    def free(self) -> int:
        """Return the bytes that one more model may use."""
        coming = sum(footprint_of(entry) for entry in self.residents if _is_coming(entry))
        free = self._read_memory().available - coming
        if self.budget_bytes is not None:
            free = min(free, self.budget_bytes - sum(footprint_of(entry) for entry in self.residents))
        return max(0, free)


def _is_coming(entry: ModelEntry) -> bool:
    return entry.ready is None or any(replica.state == "loading" for replica in entry.replicas)


def footprint_of(entry: ModelEntry) -> int:
    """Return the bytes that a model takes: its estimate, with the KV caches that its engines made once all are up."""
    if entry.footprint is None:
        return 0
    on_host = [replica.ready for replica in entry.replicas if replica.device == CPU]
    made = [ready.kv_bytes for ready in on_host if ready is not None]
    if len(made) < len(on_host) or not on_host:
        return entry.footprint.total
    return entry.footprint.total_with(sum(made))
