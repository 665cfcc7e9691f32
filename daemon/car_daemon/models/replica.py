"""One engine's place in a model: what it told, and what became of it."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from car_daemon.engine.frames import Ready

ReplicaState = Literal["unloaded", "loading", "ready", "failed"]


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


class Replica:
    """A model on one device; `changed` and `advanced` hear of its state and of how much of it is loaded."""

    def __init__(self, device: str, changed: Callable[[], None], advanced: Callable[[], None]) -> None:
        self.device = device
        self._changed = changed
        self._advanced = advanced
        # Mutable state: how it stands, and why it failed; what its engine told; the engine's number and process, its
        # totals and how many were started in place of one that died; and whether it ever served.
        self.state: ReplicaState = "unloaded"
        self.reason: str | None = None
        self.ready: Ready | None = None
        self.progress = 0.0
        self.engine: int | None = None
        self.pid: int | None = None
        self.counters = Counters()
        self.restarts = 0
        self.served = False

    def __repr__(self) -> str:
        return f"<Replica on {self.device} {self.state}>"

    def become(self, state: ReplicaState, *, ready: Ready | None = None, reason: str | None = None) -> None:
        """Change the state together with what is known in it, and tell."""
        if state == "loading":
            self.progress = 0.0
        self.served = self.served or state == "ready"
        self.state = state
        self.ready = ready
        self.reason = reason
        self._changed()

    def retire(self) -> None:
        """Take note that it is loaded no more; whoever had it go says what its model is now."""
        self.state, self.ready, self.reason = "unloaded", None, None

    def advance(self, done: float) -> None:
        """Take note of the share that is loaded, and tell."""
        self.progress = done
        self._advanced()

    def launched(self, engine: int, pid: int) -> None:
        """Take note of a new engine."""
        self.engine, self.pid = engine, pid

    def lost(self) -> None:
        """Take note that its engine is gone."""
        self.engine = self.pid = None
        self.counters = Counters()
