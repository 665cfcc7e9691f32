"""One life of an engine: its process from launch to end, its frames and its health."""

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from car_base.host.event_log import log, printable
from car_base.host.timers import Timer
from car_base.ipc.frames import (
    FromEngine,
    Heartbeat,
    JobBegun,
    Load,
    LoadFailed,
    Loading,
    Overwritten,
    Quit,
    Ready,
    RunningJob,
    Warned,
)
from car_base.ipc.types import ENGINE_FAILED
from car_daemon.engines.cell_keeper import CellKeeper
from car_daemon.engines.link import Engine, Launcher, WrongFrame
from car_daemon.models.entry import ModelEntry
from car_daemon.models.replica import Replica

# A step may last this many times as long as the longest that is known to have ended.
_MOST_GROWTH = 20
_RATE = "tokens_per_s_"
_MIB = 1 << 20


class HealthLimits(Struct, frozen=True, kw_only=True):
    """Seconds without a heartbeat, of one step, and of one tokenizer's job for every MiB of its input.

    A loading engine may be silent for longer, because the interpreter may stop all of its threads while it maps large
    libraries from a cold disk; and so may an engine whose threads wait for a core.
    """

    silence_s: float = 5.0
    loading_silence_s: float = 30.0
    step_s: float = 10.0
    job_s: float = 5.0
    look_every_s: float = 0.5


class Hang(NamedTuple):
    """The part of an engine for which it is killed, why, and the request at which it hangs if that is known."""

    part: Literal["heartbeat", "step", "job", "file"]
    why: str
    key: int | None = None


class HealthCheck:
    """The last signs of life of one engine; `now` is the caller's clock in seconds."""

    def __init__(self, limits: HealthLimits, now: float) -> None:
        self._limits = limits
        self._last_frame = now
        self._looked = now
        self._silence_s = limits.loading_silence_s  # the longest allowed now
        self._step = 0  # the number of the step that runs
        self._age_s = 0.0  # of that step
        self._longest_s = 0.0  # of the steps that are known to have ended
        self._job: RunningJob | None = None  # at the last heartbeat, or begun since

    def __repr__(self) -> str:
        return f"<HealthCheck step={self._step} age_s={self._age_s:g} longest_s={self._longest_s:g}>"

    def alive(self, now: float) -> None:
        """Count a frame of the engine."""
        self._last_frame = now

    def ready(self, ready: Ready, now: float) -> None:
        """Begin with the step times that the engine measured while it loaded."""
        self.alive(now)
        self._silence_s = self._limits.silence_s
        rates = {name.removeprefix(_RATE): rate for name, rate in ready.inputs.items() if name.startswith(_RATE)}
        self._longest_s = max((int(rows) / rate for rows, rate in rates.items() if rate > 0), default=0.0)

    def beat(self, heartbeat: Heartbeat, now: float) -> None:
        """Count a heartbeat."""
        self.alive(now)
        if heartbeat.step != self._step:
            self._longest_s = max(self._longest_s, self._age_s)
        self._step, self._age_s = heartbeat.step, heartbeat.step_age_ms / 1000
        self._job = heartbeat.job

    def begun(self, job: RunningJob) -> None:
        """Keep the job that has just begun, at which an engine that is silent from now on probably hangs."""
        self._job = job

    def silent_s(self, now: float) -> float:
        """Return for how long the engine has sent nothing."""
        return now - self._last_frame

    def look(self, now: float, waited_s: float = 0.0) -> Hang | None:
        """Return the part that hangs, None if it is healthy; it waited for a core for `waited_s` of its silence."""
        late = now - self._looked - self._limits.look_every_s
        self._looked = now
        if late > self._limits.look_every_s:
            # The daemon itself was stalled, and has not read the heartbeats that came meanwhile.
            self._last_frame += late
        silence_s = min(self._silence_s + waited_s, self._limits.loading_silence_s)
        if self.silent_s(now) > silence_s:
            why = f"no heartbeat for {self.silent_s(now):.1f} s, the limit is {silence_s:.3g} s"
            return Hang("heartbeat", why, None if self._job is None else self._job.key)
        limit_s = max(self._limits.step_s, _MOST_GROWTH * self._longest_s)
        if self._age_s > limit_s:
            return Hang("step", f"a step has lasted {self._age_s:.1f} s, the limit is {limit_s:g} s")
        return None if self._job is None else self._judged(self._job)

    def _judged(self, job: RunningJob) -> Hang | None:
        """Return a job that lasts too long, because its grammar may not end."""
        age_s, limit_s = job.age_ms / 1000, self._limits.job_s * max(1.0, job.input_bytes / _MIB)
        if age_s <= limit_s:
            return None
        return Hang("job", f"preparing a request has lasted {age_s:.1f} s, the limit is {limit_s:g} s", job.key)


# No request has this key: each of them runs again as if its engine had died of another.
_NO_REQUEST = -1
# Entries that an engine may log within a time in seconds: a load has about ten, and later entries are seconds apart.
_MOST_ENTRIES = 60
_ENTRIES_S = 60.0


class EngineListener(Protocol):
    """Receiver of the frames and the ends of all engines."""

    def engine_ready(self, entry: ModelEntry, engine: int, link: Engine, ready: Ready) -> None:
        """Serve the model with this engine from now on."""
        ...

    def frame_received(self, engine: int, message: FromEngine) -> None:
        """Handle a frame about a request."""
        ...

    def engine_lost(self, engine: int, suspect: int | None = None) -> None:
        """Go on without this engine; `suspect` is the key of the request that it hung at, None if none is known."""
        ...

    def replica_failed(self, entry: ModelEntry) -> None:
        """Answer the requests that only this replica of the model could have served; others may be up."""
        ...


class EngineLife:
    """One engine process of a replica; a process that hangs is killed, because it would keep its requests for ever."""

    def __init__(
        self,
        number: int,
        entry: ModelEntry,
        replica: Replica,
        listener: EngineListener,
        *,
        loaded: Callable[[int, Engine, Ready], None],
        load_failed: Callable[[str], None],
        limits: HealthLimits,
        clock: Callable[[], float],
    ) -> None:
        self.number = number
        self._entry = entry
        self._replica = replica
        self._listener = listener
        self._on_loaded = loaded
        self._on_load_failed = load_failed
        self._limits = limits
        self._clock = clock
        self._health = HealthCheck(limits, clock())
        self._engine: Engine | None = None
        self.fault: str | None = None  # why the daemon ended its link
        self.cut = False  # whether the way to another machine was lost
        self._loss_due = False  # a process was launched, and its loss not yet reported
        self.hang: Hang | None = None  # for which it was killed
        self.defect: str | None = None  # of one of its threads, which ended it
        self._logged: deque[float] = deque(maxlen=_MOST_ENTRIES)  # when it logged its last entries
        self._is_loading = True  # until it reported that it is ready, or why it cannot be
        self._next_look = Timer(self._look)
        self._waits: Mapping[str, float] | None = None  # for a core, of its threads when it fell silent

    def __repr__(self) -> str:
        pid = None if self._engine is None else self._engine.pid
        return f"<EngineLife {self.number} of {self._entry.name} on {self._replica.device} pid={pid}>"

    async def run(self, launch: Launcher, load: Load) -> int:
        """Launch the process, have it load the model, and return its exit status once its loss was reported."""
        keeper = None if load.cells is None else CellKeeper(Path(load.cells), load.cells_bytes)
        self._engine = engine = await launch(self._receive, keeper)
        self._loss_due = True
        self._health = HealthCheck(self._limits, self._clock())
        self._replica.launched(self.number, engine.pid, engine.host)
        engine.send(load)
        self._look()
        try:
            status = await engine.wait()
        finally:
            self._next_look.cancel()
            self.fault, self.cut = engine.fault, engine.cut
        self._report_loss()
        return status

    @property
    def overwritten(self) -> bool:
        """Whether it was killed because its model's file was overwritten."""
        return self.hang is not None and self.hang.part == "file"

    def outdated(self) -> None:
        """Kill the process: its mapped weights changed after the load, so its answers would be wrong."""
        if self._engine is not None and self.hang is None:
            self.hang = Hang("file", "its model's file was overwritten", _NO_REQUEST)
            log.warning("model.file_changed", model=self._entry.name, engine=self.number, change="overwritten")
            self._engine.kill()

    async def end(self) -> None:
        """Stop the process and report its loss, if that has not happened."""
        if self._engine is not None:
            await self._engine.stop()
        self._report_loss()

    def _report_loss(self) -> None:
        """Report the loss once; a listener that raises is notified again by the next call."""
        self._engine = None
        if self._loss_due:
            self._replica.lost()
            self._listener.engine_lost(self.number, None if self.hang is None else self.hang.key)
            self._loss_due = False

    def _waited_s(self, now: float) -> float:
        """Return the longest wait for a core of a thread of the silent process: other threads may wait for that one."""
        if self._engine is None or self._health.silent_s(now) < 2 * self._limits.look_every_s:  # a heartbeat a second
            self._waits = None
            return 0.0
        waits = self._engine.waits()
        if self._waits is None:
            self._waits = waits
        return max((waited - self._waits.get(thread, 0.0) for thread, waited in waits.items()), default=0.0)

    def _look(self) -> None:
        now = self._clock()
        hang = self._health.look(now, self._waited_s(now))
        if hang is None:
            self._next_look.arm(self._limits.look_every_s)
        elif self._engine is not None:
            self.hang = hang
            log.error("engine.stuck", model=self._entry.name, engine=self.number, why=hang.why)
            self._engine.kill()

    def _receive(self, message: FromEngine) -> None:
        # Each frame is a sign of life: a daemon without a core has heartbeats yet to read behind it.
        self._health.alive(self._clock())
        match message:
            case Heartbeat():
                now = self._clock()
                self._health.beat(message, now)
                self._replica.counters.update(now, message.counters)
                self._replica.devices = message.devices
            case JobBegun(job):
                self._health.begun(job)
            case Loading():
                self._replica.advance(message.done)
            case Ready():
                assert self._engine is not None
                self._loaded()
                self._health.ready(message, self._clock())
                self._on_loaded(self.number, self._engine, message)
            case LoadFailed():
                assert self._engine is not None
                self._loaded()
                self._engine.send(Quit())
                self._on_load_failed(printable(message.reason))
            case Warned():
                self._warned(message)
            case Overwritten():
                self.outdated()
            case _:
                self._listener.frame_received(self.number, message)

    def _loaded(self) -> None:
        """Note the outcome of the load; raises WrongFrame for a second one, whose changes all clients would be sent."""
        if not self._is_loading:
            raise WrongFrame("the engine reported the outcome of its load twice")
        self._is_loading = False

    def _warned(self, warned: Warned) -> None:
        """Log an entry of the engine; raises WrongFrame for more than an engine can have."""
        now, logged = self._clock(), self._logged
        if len(logged) == _MOST_ENTRIES and now - logged[0] < _ENTRIES_S:
            raise WrongFrame(f"the engine logged more than {_MOST_ENTRIES} entries within {_ENTRIES_S:g} s")
        logged.append(now)
        if warned.event == ENGINE_FAILED:
            self.defect = f"{warned.facts.get('thread')}: {warned.facts.get('fault')}"
        log.warning(warned.event, model=self._entry.name, **warned.facts)
