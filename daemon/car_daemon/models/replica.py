"""The replicas of a model: the state and the figures of each engine, and the facts that hold for all replicas."""

from collections.abc import Callable
from operator import attrgetter
from typing import Literal, Protocol

from msgspec import Struct

from car_base.host.files import Weights
from car_base.host.memory import highest
from car_base.ipc.frames import DeviceMemory, Ready
from car_protocol.capacity import Pressure

ReplicaState = Literal["unloaded", "loading", "ready", "failed"]


class Counters(Struct):
    """An engine's totals at its last two heartbeats, for rates; times in seconds."""

    at: float = 0.0
    now: dict[str, float] = {}
    before_at: float = 0.0
    before: dict[str, float] = {}

    def update(self, at: float, totals: dict[str, float]) -> None:
        """Keep the totals of one more heartbeat."""
        self.before_at, self.before = self.at, self.now
        self.at, self.now = at, totals

    def total(self, name: str) -> int:
        """Return a total since the engine's start."""
        return int(self.now.get(name, 0))

    def delta(self, name: str) -> float:
        """Return the growth of a total between the last two heartbeats."""
        return self.now.get(name, 0.0) - self.before.get(name, 0.0) if self.before else 0.0

    def rate(self, name: str) -> float:
        """Return a total's growth per second."""
        elapsed = self.at - self.before_at
        return self.delta(name) / elapsed if elapsed > 0 else 0.0


class Replica:
    """A model on one device; `changed` is called with every new state, `advanced` with the progress of a load."""

    def __init__(
        self, device: str, changed: Callable[[], None], advanced: Callable[[], None], *, placed: bool = False
    ) -> None:
        self.device = device
        self.placed = placed  # on a machine of the cluster
        self._changed = changed
        self._advanced = advanced
        self.state: ReplicaState = "unloaded"
        self.reason: str | None = None  # why it failed
        self.ready: Ready | None = None  # the engine's READY frame while it is up
        self.progress = 0.0  # the loaded part, 0 to 1
        self.engine: int | None = None  # the engine's number
        self.pid: int | None = None  # None on another machine, too
        self.host: str | None = None  # the address of the engine's machine; None on this one
        self.waiting_for: str | None = None  # what no machine of the cluster has
        self.counters = Counters()
        self.devices: list[DeviceMemory] = []  # the GPUs of its engine at the last heartbeat
        self.pressures: dict[str, Pressure] = {}  # on the memory of its GPUs, by name
        self.restarts = 0  # engines started in place of a dead one
        self.served = False  # whether it was ever up
        self.weights: Weights | None = None  # the files that its engine opened last

    def __repr__(self) -> str:
        return f"<Replica on {self.device} {self.state}, engine {self.engine}, {self.restarts} restarts>"

    @property
    def serves_on(self) -> str:
        """Its device; once it is up, the one that its engine reported."""
        return self.device if self.ready is None else self.ready.device

    @property
    def pressure(self) -> Pressure:
        """The highest level of its GPUs."""
        return highest(self.pressures.values())

    def become(self, state: ReplicaState, *, ready: Ready | None = None, reason: str | None = None) -> None:
        """Change the state with its facts, and report the change."""
        if state == "loading":
            self.progress = 0.0
        self.served = self.served or state == "ready"
        self.state = state
        self.ready = ready
        self.reason = reason
        self._changed()

    def restart(self) -> None:
        """Count one more engine in place of a dead one, and load again."""
        self.restarts += 1
        self.become("loading")

    def retire(self) -> None:
        """Become unloaded without a report, because the caller decides the state of the whole model."""
        self.state, self.ready, self.reason, self.waiting_for = "unloaded", None, None, None

    def advance(self, done: float) -> None:
        """Keep the loaded part, 0 to 1, and report each further percent: a hundred reports a load."""
        if int(100 * done) > int(100 * self.progress):
            self.progress = done
            self._advanced()

    def wait_for(self, missing: str | None) -> None:
        """Keep what no machine of the cluster has; None once there is a place. Reports a change."""
        if missing != self.waiting_for:
            self.waiting_for = missing
            self._changed()

    def launched(self, engine: int, pid: int | None, host: str | None = None) -> None:
        """Keep the number, the process and the machine of a new engine."""
        self.engine, self.pid, self.host = engine, pid, host

    def lost(self) -> None:
        """Forget an engine that is gone."""
        self.engine = self.pid = self.host = None
        self.counters = Counters()
        self.devices = []
        self.pressures = {}


class ReplicaGroup(list[Replica]):
    """The replicas of one model, with the facts that hold for all replicas."""

    @property
    def serving(self) -> list[Replica]:
        """The replicas whose engine is up."""
        return [replica for replica in self if replica.ready is not None]

    @property
    def opened(self) -> set[Weights]:
        """The files that their engines opened, mostly the same files."""
        return {each.weights for each in self if each.engine is not None and each.weights is not None}

    @property
    def ready(self) -> Ready | None:
        """The READY frame of the engine with the longest context, which a prompt may fill; None while none is up."""
        up = [replica.ready for replica in self if replica.ready is not None]
        return max(up, key=attrgetter("context_tokens"), default=None)

    @property
    def fingerprint(self) -> str | None:
        """That of what their answers depend on; None while no engine is up that has one."""
        return (ready.fingerprint or None) if (ready := self.ready) is not None else None

    @property
    def progress(self) -> float:
        """The loaded part, 0 to 1."""
        return sum(replica.progress for replica in self) / len(self)

    @property
    def devices(self) -> list[str]:
        """Their devices, now or after a load, each one once; without the failed replicas, unless all failed."""
        hopeful = [replica for replica in self if replica.state != "failed"]
        return list(dict.fromkeys(replica.serves_on for replica in hopeful or self))

    @property
    def device(self) -> str:
        """All of their devices in one word."""
        return "+".join(dict.fromkeys(replica.serves_on for replica in self))


class Engines(Protocol):
    """All engines of one model: kept up by supervisors, whose package imports this package."""

    def start(self) -> None:
        """Load the model, and load it again whenever its engine dies."""
        ...

    def grow(self) -> None:
        """Load the further replicas of a model whose configuration has more replicas on a cluster."""
        ...

    def restart(self) -> None:
        """End the engines at once and load the model again, because its file was overwritten."""
        ...

    async def stop(self) -> None:
        """End the engines; they are not started again."""
        ...
