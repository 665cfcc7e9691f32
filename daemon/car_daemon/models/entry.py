"""Model entries: the configuration of each, its state while the daemon runs, and the pool of all entries by name."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import structs

from car_base.host.devices import AUTO, is_on
from car_daemon.gguf.invalid import Flaw
from car_daemon.models.memory_estimate import MemoryEstimate
from car_daemon.models.replica import Replica, ReplicaGroup
from car_daemon.models.settings import ModelSettings
from car_protocol.capacity import ModelState, Pressure
from car_protocol.errors import RpcError

_RETRY_S = 10.0
_IN_MEMORY: tuple[ModelState, ...] = ("loading", "ready", "draining")


class ModelEntry:
    """A model by name; every change that clients see in its capacity raises `generation`."""

    def __init__(
        self,
        name: str,
        settings: ModelSettings,
        *,
        default: bool,
        on_change: Callable[["ModelEntry"], None],
        on_progress: Callable[["ModelEntry"], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.settings = settings  # of the present or last load
        self.configured = settings  # for the next load
        self.default = default
        self._on_change = on_change
        self._on_progress = on_progress
        self._clock = clock
        self.state: ModelState = "unloaded"
        self.reason: str | None = None  # why it failed, or was not loaded
        self.shortage: dict[str, int] = {}  # needed and free bytes, if memory was the reason
        self.failed_at: float | None = None  # in seconds of `clock`
        self.generation = 0
        self.loaded_at: float | None = None  # in seconds since the epoch, as the next one
        self.last_used_at: float | None = None
        self.replicas = ReplicaGroup()  # placed by `renew`
        self.estimate: MemoryEstimate | None = None  # of all replicas; None until a load, or if it is unknown
        self.budget_bytes: int | None = None  # for the KV cache of each replica
        self.device_pressure: Pressure = "none"  # on the memory of the GPUs of its replicas
        self.renew()

    def __repr__(self) -> str:
        served = f"{len(self.replicas.serving)}/{len(self.replicas)} replicas up"
        return f"<ModelEntry {self.name} {self.state}, {served}, generation {self.generation}>"

    @property
    def pinned(self) -> bool:
        """The model stays loaded until it is unloaded by its name."""
        return self.default or self.configured.pinned

    @property
    def may_try_again(self) -> bool:
        """A request loads the failed model again; the default model is retried without a request."""
        if self.reason == Flaw.NOT_DOWNLOADED and _size_of(self.configured.path) is not None:
            return True
        return not self.default and self.failed_at is not None and self._clock() - self.failed_at >= _RETRY_S

    def become(self, state: ModelState, *, reason: str | None = None, shortage: dict[str, int] | None = None) -> None:
        """Change the state with its facts, and report the change."""
        if state == "ready" and self.state != "ready":
            self.loaded_at = time.time()
        self.failed_at = self._clock() if state == "failed" else None
        self.state = state
        self.reason = reason
        self.shortage = shortage or {}
        self.capacity_changed()

    def capacity_changed(self) -> None:
        """Count and report a change that clients see in the capacity object."""
        self.generation += 1
        self._on_change(self)

    def touch(self) -> None:
        """Note that the model is used now."""
        self.last_used_at = time.time()

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the model file; None if it is missing."""
        return _size_of(self.settings.path)

    # The replicas.

    def renew(self) -> ReplicaGroup:
        """Apply the present configuration; return the replicas to load: the present replicas if it only adds others."""
        self.settings = self.configured
        places, placed = self.settings.places, self.settings.placed
        stay = [(replica.placed, replica.device) for replica in self.replicas]
        if stay != [(placed, device) for device in places]:
            kept = self.replicas if stay == [(placed, device) for device in places[: len(stay)]] else []
            advanced = partial(self._on_progress, self)
            further = [
                Replica(device, self._replica_changed, advanced, placed=placed) for device in places[len(kept) :]
            ]
            self.replicas = ReplicaGroup([*kept, *further])
        return self.replicas

    def refresh(self, replica: Replica) -> None:
        """Apply the present configuration to the next life of a replica, unless others run with the one before."""
        alone = not any(other.state in ("loading", "ready") for other in self.replicas if other is not replica)
        if alone and self.configured.places == self.settings.places and self.configured.place == self.settings.place:
            self.settings = self.configured

    def is_on(self, device: str | None) -> bool:
        """Return whether a replica is on a device, or will be once the model is loaded as it is configured now."""
        devices = self.replicas.devices if self.state in ("loading", "ready") else self.configured.places
        return any(is_on(each, device) for each in devices)

    def _replica_changed(self) -> None:
        """Derive the state from the replicas: a model is served as long as one replica is."""
        states = [replica.state for replica in self.replicas]
        if "ready" in states and self.state == "draining":
            self.capacity_changed()
        elif "ready" in states:
            self.become("ready")
        elif "loading" in states:
            if self.state != "loading":
                self.become("loading")
        elif "failed" in states:
            self.become("failed", reason=next(each.reason for each in self.replicas if each.state == "failed"))


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None


class ModelPool:
    """The configured entries; `on_change` and `on_progress` are called with every entry that changes."""

    def __init__(
        self,
        settings: dict[str, ModelSettings],
        default: str,
        *,
        on_change: Callable[[ModelEntry], None],
        on_progress: Callable[[ModelEntry], None] = lambda _: None,
    ) -> None:
        self._on_change = on_change
        self._on_progress = on_progress
        self.auto = AUTO  # the device of entries without a stated one; `auto` until it is known
        # Entries stay for the requests that go on, also of models that a reload left out.
        self._entries = {name: self._new(name, one, default=name == default) for name, one in settings.items()}
        self.default = self._entries[default]
        self.first_default = self.default  # the one whose failure ends the daemon
        self._configured = set(settings)
        self._aliases = _aliases(settings)

    def __repr__(self) -> str:
        return f"<ModelPool of {len(self._entries)}: {list(self)}>"

    def __iter__(self) -> Iterator[ModelEntry]:
        """Yield the entries that are configured or in memory, the default one first."""
        yield self.default
        others = (entry for entry in self._entries.values() if not entry.default)
        yield from (entry for entry in others if self.is_configured(entry) or entry.state in _IN_MEMORY)

    def is_configured(self, entry: ModelEntry) -> bool:
        """Return whether requests may name the model."""
        return entry.name in self._configured

    @property
    def engine_pids(self) -> list[int]:
        """The processes of all engines, loading engines included."""
        return [replica.pid for entry in self for replica in entry.replicas if replica.pid is not None]

    def configure(self, settings: dict[str, ModelSettings]) -> None:
        """Add new entries; the settings of the others hold from their next load on."""
        for name, one in settings.items():
            if name not in self._entries:
                self._entries[name] = self._new(name, one, default=False)
            self._entries[name].configured = one.on(self.auto)
        for name in self._entries.keys() - settings.keys():
            entry = self._entries[name]
            entry.configured = structs.replace(entry.configured, aliases=())
        self._configured = set(settings)
        self._aliases = _aliases(settings)

    def place(self, device: str) -> None:
        """Have the entries without a stated device loaded on this one from now on."""
        self.auto = device
        for entry in self._entries.values():
            entry.configured = entry.configured.on(device)

    def use(self, name: str) -> None:
        """Make a configured entry the default one."""
        old, self.default = self.default, self._entries[name]
        if old is not self.default:
            old.default, self.default.default = False, True
            self.capacity_changed()

    def capacity_changed(self) -> None:
        """Count and report a change that clients see in the capacity of every model."""
        for entry in self:
            entry.capacity_changed()

    def named(self, name: str | None) -> ModelEntry:
        """Return an entry by its name or an alias, the default one for None; raises RpcError `model_unavailable`."""
        entry = (
            self.default if name is None else self._entries.get(name) or self._entries.get(self._aliases.get(name, ""))
        )
        if entry is None or not self.is_configured(entry):
            raise RpcError("model_unavailable", why="unknown model")
        return entry

    def accepted(self, name: str) -> ModelEntry:
        """Return the entry of a request that was accepted, whose model may be left out by now."""
        return self._entries[name]

    def servable(self, name: str | None) -> ModelEntry:
        """Return an entry that is served or may be loaded; raises RpcError `model_unavailable`."""
        entry = self.named(name)
        if entry.state == "failed" and not entry.may_try_again:
            raise RpcError("model_unavailable", why=entry.reason)
        return entry

    def _new(self, name: str, settings: ModelSettings, *, default: bool) -> ModelEntry:
        return ModelEntry(
            name, settings.on(self.auto), default=default, on_change=self._on_change, on_progress=self._on_progress
        )


def _aliases(settings: dict[str, ModelSettings]) -> dict[str, str]:
    """Return the model of each alias."""
    return {alias: name for name, one in settings.items() for alias in one.aliases}
