"""One model entry: what was configured, and what is known of it while it lives."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from car_daemon.devices import CPU, GPU, is_on
from car_daemon.engine.frames import Ready
from car_daemon.models.replica import Replica
from car_daemon.models.unsound import Reason
from car_protocol.capacity import ModelState, Policy

if TYPE_CHECKING:
    from car_daemon.models.footprint import Footprint

NO_ROOM = "not enough memory is free"
_TRY_AGAIN_S = 10.0
# What holds where the configuration says nothing.
MAX_ITL_MS = 150
SAVED_BYTES = 512 * 1024 * 1024
STEP_TARGET_MS = 120


class ModelSettings(Struct, frozen=True):
    """How to load a model; None means that the engine decides. `pull` is the command that downloads its file."""

    path: Path
    pull: str | None = None
    context_tokens: int | None = None
    sequences: int | None = None
    policy: Policy = "measured"
    max_itl_ms: int = MAX_ITL_MS
    reserve_bytes: int = 0
    saved_bytes: int = SAVED_BYTES
    step_target_ms: int = STEP_TARGET_MS
    curves: Path | None = None
    threads: int | None = None
    gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    replicas: int = 1
    adapters: dict[str, Path] = {}
    projector: Path | None = None
    chat_template: Path | None = None
    speculative: bool = False
    keep_alive_s: float = 600.0
    pinned: bool = False

    @property
    def places(self) -> list[str]:
        """The device of each replica."""
        return list(self.devices or (GPU if self.gpu_layers else CPU,)) * self.replicas

    def layers_on(self, device: str) -> int:
        """Return how many layers a replica on a device has there; -1 is all of them."""
        return 0 if device == CPU else self.gpu_layers


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
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        # What it was loaded with, and what it will be loaded with next.
        self.settings = self.configured = settings
        self.default = default
        self._on_change = on_change
        self._on_progress = on_progress
        self._wall_clock = wall_clock
        self._clock = clock
        # Mutable state: what clients are told, with the figures of a shortage of memory; then its replicas, and its
        # memory: what it is estimated to take, and what is left for the KV cache of each replica.
        self.state: ModelState = "unloaded"
        self.reason: str | None = None
        self.shortage: dict[str, int] = {}
        self.failed_at: float | None = None
        self.generation = 0
        self.loaded_at: float | None = None
        self.last_used_at: float | None = None
        self.replicas: list[Replica] = []
        self.footprint: Footprint | None = None
        self.budget_bytes: int | None = None
        self._place_replicas()

    @property
    def pinned(self) -> bool:
        """Whether it stays loaded until somebody unloads it by its name."""
        return self.default or self.configured.pinned

    @property
    def may_try_again(self) -> bool:
        """Whether a model that failed is loaded again for who asks; the default one is so without being asked."""
        if self.reason == Reason.NOT_DOWNLOADED and _size_of(self.configured.path) is not None:
            return True
        return not self.default and self.failed_at is not None and self._clock() - self.failed_at >= _TRY_AGAIN_S

    def become(self, state: ModelState, *, reason: str | None = None, shortage: dict[str, int] | None = None) -> None:
        """Change the state together with what is known in it, and tell."""
        if state == "ready" and self.state != "ready":
            self.loaded_at = self._wall_clock()
        self.failed_at = self._clock() if state == "failed" else None
        self.state = state
        self.reason = reason
        self.shortage = shortage or {}
        self.capacity_changed()

    def capacity_changed(self) -> None:
        """Count a change that clients see in the capacity object, and tell."""
        self.generation += 1
        self._on_change(self)

    def touch(self) -> None:
        """Note that the model is used now."""
        self.last_used_at = self._wall_clock()

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the model file; None where it is missing."""
        return _size_of(self.settings.path)

    # Its replicas.

    def renew(self) -> list[Replica]:
        """Take what is configured now, before it is loaded; return the replicas to load."""
        self.settings = self.configured
        if [replica.device for replica in self.replicas] != self.settings.places:
            self._place_replicas()
        return self.replicas

    def refresh(self, replica: Replica) -> None:
        """Take what is configured now for another life of a replica, where no other one runs with what was."""
        alone = not any(other.state in ("loading", "ready") for other in self.replicas if other is not replica)
        if alone and self.configured.places == self.settings.places:
            self.settings = self.configured

    @property
    def serving(self) -> list[Replica]:
        """The replicas whose engine is up."""
        return [replica for replica in self.replicas if replica.ready is not None]

    @property
    def ready(self) -> Ready | None:
        """What the engine with the shortest context told; None while none is up."""
        told = [replica.ready for replica in self.replicas if replica.ready is not None]
        return min(told, key=lambda ready: ready.context_tokens, default=None)

    @property
    def progress(self) -> float:
        """The share that is loaded, 0 to 1."""
        return sum(replica.progress for replica in self.replicas) / len(self.replicas)

    @property
    def devices(self) -> list[str]:
        """Where it runs, or will: each device once, without those that failed unless all did."""
        hopeful = [replica for replica in self.replicas if replica.state != "failed"]
        return list(dict.fromkeys(replica.device for replica in hopeful or self.replicas))

    @property
    def device(self) -> str:
        """All of its devices in one word."""
        return "+".join(dict.fromkeys(replica.device for replica in self.replicas))

    def is_on(self, wanted: str | None) -> bool:
        """Tell whether one of its replicas is on a device, or will be once it is loaded as it is configured now."""
        devices = self.devices if self.state in ("loading", "ready") else self.configured.places
        return any(is_on(device, wanted) for device in devices)

    def _place_replicas(self) -> None:
        self.replicas = [
            Replica(device, self._replica_changed, lambda: self._on_progress(self)) for device in self.settings.places
        ]

    def _replica_changed(self) -> None:
        """Have the state follow the replicas: it is served as long as one of them is."""
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
