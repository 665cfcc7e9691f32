"""The memory that models share: the models in it, the bytes left, and the models to unload for another one."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from car_daemon.host.devices import CPU
from car_daemon.host.memory import MemorySource
from car_daemon.models.entry import ModelEntry


class MemoryBudget:
    """Counts a model from `enter` until `leave`.

    `budget_bytes` is the most that all models may use together; None is all free memory.
    """

    def __init__(self, budget_bytes: int | None, read_memory: MemorySource) -> None:
        self.budget_bytes = budget_bytes
        self._read_memory = read_memory
        self._residents: dict[str, ModelEntry] = {}  # the models that have an engine, or are about to

    def __repr__(self) -> str:
        used = sum(memory_of(entry) for entry in self.residents)
        return f"<MemoryBudget {used}/{self.budget_bytes} bytes, {len(self._residents)} models>"

    @property
    def residents(self) -> Iterable[ModelEntry]:
        """The models that count."""
        return self._residents.values()

    def enter(self, entry: ModelEntry) -> None:
        """Count a model, and set the bytes that the KV cache of each of its engines may use."""
        replicas = len(entry.configured.places)
        entry.budget_bytes = None
        # Because engines that load at the same time would each find the same memory free.
        if entry.estimate is not None and (self.budget_bytes is not None or replicas > 1):
            entry.budget_bytes = max(0, self.free() - entry.estimate.total_with(0)) // replicas
        self._residents[entry.name] = entry

    def leave(self, entry: ModelEntry) -> None:
        """Stop counting a model."""
        self._residents.pop(entry.name, None)

    def free_for(self, entry: ModelEntry) -> int:
        """Return the bytes that a model may use; the bytes it has already are free for it."""
        return self.free() + (memory_of(entry) if entry.name in self._residents else 0)

    def free(self) -> int:
        """Return the bytes that one more model may use."""
        loading = sum(
            memory_of(entry)
            for entry in self.residents
            if entry.replicas.ready is None or any(replica.state == "loading" for replica in entry.replicas)
        )
        free = self._read_memory().available - loading
        if self.budget_bytes is not None:
            free = min(free, self.budget_bytes - sum(memory_of(entry) for entry in self.residents))
        return max(0, free)


def memory_of(entry: ModelEntry) -> int:
    """Return the bytes of a model: its estimate, with the real size of the KV caches once all its engines are up."""
    if entry.estimate is None or entry.settings.placed:
        return 0
    on_host = [replica.ready for replica in entry.replicas if replica.device == CPU]
    allocated = [ready.kv_bytes + ready.mask_bytes for ready in on_host if ready is not None]
    if len(allocated) < len(on_host) or not on_host:
        return entry.estimate.total
    return entry.estimate.total_with(sum(allocated))


class Resident(Struct, frozen=True):
    """A model in memory; `used_at` in seconds of any clock, `evictable` where it may be unloaded."""

    name: str
    bytes: int
    used_at: float
    evictable: bool


def choose(needed: int, free: int, residents: Sequence[Resident]) -> list[str] | None:
    """Return the fewest models to unload, least recently used first; None where all of them are not enough."""
    chosen: list[Resident] = []
    for resident in sorted(residents, key=lambda each: (each.used_at, each.name)):
        if free + _sum(chosen) >= needed:
            break
        if resident.evictable:
            chosen.append(resident)
    if free + _sum(chosen) < needed:
        return None
    # A large model that is chosen last may make others superfluous: spare the most recently used ones.
    for resident in reversed(chosen):
        if free + _sum(chosen) - resident.bytes >= needed:
            chosen = [each for each in chosen if each is not resident]
    return [resident.name for resident in chosen]


def _sum(residents: Sequence[Resident]) -> int:
    return sum(resident.bytes for resident in residents)
