"""The memory that models share, of host and devices: the models in it, and what is left."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from car_base.host.devices import CPU, Device
from car_base.host.memory import MemorySource
from car_daemon.models.entry import ModelEntry


class MemoryBudget:
    """Counts a model from `enter` until `leave`.

    `budget_bytes` is the most of the host that all models may use together; None is all free memory. `find_devices`
    returns the GPUs with their memory now.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        read_memory: MemorySource,
        find_devices: Callable[[], Awaitable[Sequence[Device]]],
    ) -> None:
        self.budget_bytes = budget_bytes
        self._read_memory = read_memory
        self.find_devices = find_devices
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
        together = replicas > 1 or self._loading_bytes > 0
        if entry.estimate is not None and (self.budget_bytes is not None or together):
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
        free = self._read_memory().available - self._loading_bytes
        if self.budget_bytes is not None:
            free = min(free, self.budget_bytes - sum(memory_of(entry) for entry in self.residents))
        return max(0, free)

    @property
    def _loading_bytes(self) -> int:
        """Bytes of the models with engines that have not taken all of theirs yet."""
        return sum(
            memory_of(entry)
            for entry in self.residents
            if entry.replicas.ready is None or any(replica.state == "loading" for replica in entry.replicas)
        )


def taken_of(entry: ModelEntry) -> dict[str, int]:
    """Return the bytes that a model took of each GPU by its loads."""
    taken: Counter[str] = Counter()
    for ready in (replica.ready for replica in entry.replicas if replica.ready is not None):
        taken.update({use.name: use.taken for use in ready.devices if use.slots})
    return {name: size for name, size in taken.items() if size}


def memory_of(entry: ModelEntry) -> int:
    """Return the bytes of a model: its estimate, with the real size of the KV caches once all its engines are up."""
    if entry.estimate is None or entry.settings.placed:
        return 0
    ready = [replica.ready for replica in entry.replicas if replica.ready is not None]
    planned = 0 if len(ready) == len(list(entry.replicas)) else entry.estimate.host_weights or 0
    host_weights = max(planned, sum(each.host_weights for each in ready))
    on_host = [replica.ready for replica in entry.replicas if replica.device == CPU]
    allocated = [each.kv_bytes + each.mask_bytes for each in on_host if each is not None]
    if len(allocated) < len(on_host) or not on_host:
        return entry.estimate.total + host_weights
    return entry.estimate.total_with(sum(allocated)) + host_weights


def takes_devices(entry: ModelEntry) -> bool:
    """Return whether a replica is being loaded onto a GPU."""
    return any(replica.state == "loading" and replica.device != CPU for replica in entry.replicas)
