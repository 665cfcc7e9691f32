"""One model entry: what was configured, and what is known of it while it lives."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from car_daemon.engine.frames import Ready
from car_daemon.models.unsound import Reason
from car_protocol.capacity import ModelState, Policy

if TYPE_CHECKING:
    from car_daemon.models.footprint import Footprint

NO_ROOM = "not enough memory is free"
_TRY_AGAIN_S = 10.0


class ModelSettings(Struct, frozen=True):
    """How to load a model; None means that the engine decides. `pull` is the command that downloads its file."""

    path: Path
    pull: str | None = None
    context_tokens: int | None = None
    sequences: int | None = None
    policy: Policy = "measured"
    max_itl_ms: int = 150
    reserve_bytes: int = 0
    saved_bytes: int = 512 * 1024 * 1024
    step_target_ms: int = 50
    curves: Path | None = None
    threads: int | None = None
    gpu_layers: int = 0
    adapters: dict[str, Path] = {}
    projector: Path | None = None
    speculative: bool = False
    keep_alive_s: float = 600.0
    pinned: bool = False


class Counters(Struct):
    """An engine's totals at two heartbeats, for rates; `at` in seconds."""

    at: float = 0.0
    now: dict[str, float] = {}
    before_at: float = 0.0
    before: dict[str, float] = {}

    def take(self, at: float, totals: dict[str, float]) -> None:
        """Take the totals of one more heartbeat."""
        self.before_at, self.before = self.at, self.now
        self.at, self.now = at, totals

    def total(self, name: str) -> int:
        """Return a total since the engine's start."""
        return int(self.now.get(name, 0))

    def delta(self, name: str) -> float:
        """Return how much a total grew between the last two heartbeats."""
        return self.now.get(name, 0.0) - self.before.get(name, 0.0) if self.before else 0.0

    def rate(self, name: str) -> float:
        """Return a total's growth per second."""
        elapsed = self.at - self.before_at
        return self.delta(name) / elapsed if elapsed > 0 else 0.0


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
        # Mutable state: what clients are told, with the figures of a shortage of memory; then what the engine told,
        # its process, and its memory: what it is estimated to take, and what is left for its KV cache.
        self.state: ModelState = "unloaded"
        self.reason: str | None = None
        self.shortage: dict[str, int] = {}
        self.failed_at: float | None = None
        self.generation = 0
        self.ready: Ready | None = None
        self.progress = 0.0
        self.loaded_at: float | None = None
        self.last_used_at: float | None = None
        self.pid: int | None = None
        self.restarts = 0
        self.counters = Counters()
        self.footprint: Footprint | None = None
        self.budget_bytes: int | None = None

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

    def become(
        self,
        state: ModelState,
        *,
        ready: Ready | None = None,
        reason: str | None = None,
        shortage: dict[str, int] | None = None,
    ) -> None:
        """Change the state together with what is known in it, and tell."""
        if state == "loading":
            self.progress = 0.0
        if state == "ready":
            self.loaded_at = self._wall_clock()
        self.failed_at = self._clock() if state == "failed" else None
        self.state = state
        self.ready = ready
        self.reason = reason
        self.shortage = shortage or {}
        self.capacity_changed()

    def advance(self, done: float) -> None:
        """Take note of the share that is loaded, and tell."""
        self.progress = done
        self._on_progress(self)

    def capacity_changed(self) -> None:
        """Count a change that clients see in the capacity object, and tell."""
        self.generation += 1
        self._on_change(self)

    @property
    def device(self) -> str:
        """Where it runs, or will."""
        return self.ready.device if self.ready is not None else "cpu" if self.settings.gpu_layers == 0 else "gpu"

    def touch(self) -> None:
        """Note that the model is used now."""
        self.last_used_at = self._wall_clock()

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the model file; None where it is missing."""
        return _size_of(self.settings.path)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
