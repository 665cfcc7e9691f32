"""Keeps the engine of one replica up: loads it, tells its frames on, starts it again after a death."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import structlog
from msgspec import Struct

from car_daemon import faults
from car_daemon.engine.frames import FromEngine, Heartbeat, Load, LoadFailed, Loading, Quit, Ready, Warned
from car_daemon.models.circuit import Circuit, CircuitLimits
from car_daemon.models.entry import ModelEntry, ModelSettings
from car_daemon.models.link import Engine
from car_daemon.models.parts import check_files
from car_daemon.models.replica import Replica
from car_daemon.models.unsound import Reason, UnsoundModel
from car_daemon.models.vitals import VitalLimits, Vitals
from car_protocol.errors import REASONS

log = structlog.get_logger()
DIED_TOO_OFTEN = "the engine died too often"
UNSUPERVISED = REASONS["internal_error"].message
# What native code ends with that does what it must not.
_CRASHES = {-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)}

Launcher = Callable[[Callable[[FromEngine], None]], Awaitable[Engine]]


class Patience(Struct, frozen=True, kw_only=True):
    """How long an engine may hang, how often it may die, and the pauses between its lives, which double."""

    vitals: VitalLimits = VitalLimits()
    circuit: CircuitLimits = CircuitLimits()
    first_pause_s: float = 0.1


class Audience(Protocol):
    """Who hears what engines say and do."""

    def engine_ready(self, entry: ModelEntry, engine: int, link: Engine, ready: Ready) -> None:
        """An engine serves the model from now on."""
        ...

    def engine_said(self, engine: int, message: FromEngine) -> None:
        """An engine sent a frame about a request."""
        ...

    def engine_lost(self, engine: int) -> None:
        """An engine is gone."""
        ...

    def replica_failed(self, entry: ModelEntry) -> None:
        """A replica of the model cannot be served; others may be."""
        ...


class EngineSupervisor:
    """A replica's engine over all its lives, each with a number that no other engine of the daemon has.

    `check` raises UnsoundModel for files that no engine may see.
    """

    def __init__(
        self,
        entry: ModelEntry,
        replica: Replica,
        launch: Launcher,
        audience: Audience,
        *,
        numbers: Iterator[int],
        clock: Callable[[], float],
        patience: Patience | None = None,
        check: Callable[[ModelSettings], object] = check_files,
    ) -> None:
        self._entry = entry
        self._replica = replica
        self._launch = launch
        self._audience = audience
        self._numbers = numbers
        self._clock = clock
        self._patience = patience or Patience()
        self._check = check
        self._circuit = Circuit(self._patience.circuit)
        # Mutable state: the task that runs the lives, the engine of the present one, whether others take it for up, its
        # number, its health and the timer that looks at it, the pause after it, and whether the next one may pack the
        # weights for these cores.
        self._task: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self._up = False
        self._number = 0
        self._vitals = Vitals(self._patience.vitals, clock())
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = self._patience.first_pause_s
        self._packed = True

    def start(self) -> None:
        """Load the model, and load it again whenever its engine dies."""
        self._replica.become("loading")
        self._task = asyncio.create_task(self._supervise(), name=f"supervisor {self._entry.name}")

    async def stop(self) -> None:
        """End the engine; it is not started again until `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._end_engine()
        self._replica.retire()

    async def _end_engine(self) -> None:
        if self._engine is not None:
            await self._engine.stop()
        self._lost()

    def _lost(self) -> None:
        """Tell once that the engine is gone, also where the first who hears of it fails."""
        self._engine = None
        if self._up:
            self._replica.lost()
            self._audience.engine_lost(self._number)
            self._up = False

    async def _supervise(self) -> None:
        """Live; at a defect in here end the engine and have everything answered, whatever of that fails too."""
        try:
            await self._live()
        except Exception as error:  # noqa: BLE001 - nobody awaits the task
            self._tell_defect(error)
            for step in (self._give_up, self._end_engine, self._refuse_waiting):
                try:
                    await step()
                except Exception as another:  # noqa: BLE001 - the next step may work all the same
                    self._tell_defect(another)
            self._up = False

    def _tell_defect(self, error: Exception) -> None:
        faults.report("supervisor.failed", error, model=self._entry.name)

    async def _give_up(self) -> None:
        self._replica.become("failed", reason=UNSUPERVISED)

    async def _refuse_waiting(self) -> None:
        self._audience.replica_failed(self._entry)

    async def _live(self) -> None:
        """Run engines one after the other until the model cannot be served; one that was served is tried again."""
        while True:
            await self._one_life()
            if self._replica.state != "failed" and self._circuit.died(self._clock()):
                self._fail(DIED_TOO_OFTEN)
            if self._replica.state != "failed":
                await self._pause()
            elif await self._cooled_down():
                self._circuit.try_again()
                self._begin_again()
            else:
                return
            if self._entry.state == "draining":
                # It goes as soon as the other replicas have no work.
                return

    async def _cooled_down(self) -> bool:
        """Wait before a replica that failed is tried again; return whether it is."""
        if not self._is_missed():
            return False
        await asyncio.sleep(self._patience.circuit.cool_down_s)
        return self._is_missed()

    def _is_missed(self) -> bool:
        """Whether it served, and its model is kept up: where all of one that is not the default failed, it is not."""
        return self._replica.served and (self._entry.default or bool(self._entry.serving))

    async def _pause(self) -> None:
        self._begin_again()
        pause, self._pause_s = self._pause_s, 2 * self._pause_s
        log.warning("engine.restarts", model=self._entry.name, restarts=self._replica.restarts, after_s=pause)
        await asyncio.sleep(pause)

    def _begin_again(self) -> None:
        self._replica.restarts += 1
        self._replica.become("loading")

    async def _one_life(self) -> None:
        """Run one engine process to its end, for a file that may be loaded."""
        self._entry.refresh(self._replica)
        try:
            await asyncio.to_thread(self._check, self._entry.settings)
            await self._run_engine(next(self._numbers))
        except UnsoundModel as unsound:
            self._refuse(unsound)
        except Exception as error:  # noqa: BLE001 - no process, no descriptor, a figure that no frame holds: a death
            log.error("engine.launch_failed", model=self._entry.name, error=type(error).__name__)  # noqa: TRY400
            await self._end_engine()

    async def _run_engine(self, number: int) -> None:
        self._number = number
        self._engine = engine = await self._launch(lambda message: self._hear(number, message))
        self._up = True
        self._vitals = Vitals(self._patience.vitals, self._clock())
        self._replica.launched(number, engine.pid)
        engine.send(self._load())
        self._watch(engine)
        try:
            status = await engine.wait()
        finally:
            self._stop_watching()
        self._lost()
        log.warning("engine.ended", model=self._entry.name, engine=number, status=status)
        if status in _CRASHES and self._replica.state == "loading":
            self._pack_otherwise()

    def _pack_otherwise(self) -> None:
        """Have the next engine take weights as they are, or packed again: packed ones crash on some CPUs."""
        self._packed = not self._packed
        if not self._packed:
            log.warning("engine.unpacked", model=self._entry.name, device=self._replica.device)

    def _watch(self, engine: Engine) -> None:
        """Kill an engine that hangs, now or later: it would keep its requests for ever."""
        fault = self._vitals.look(self._clock())
        if fault is None:
            delay = self._patience.vitals.look_every_s
            self._timer = asyncio.get_running_loop().call_later(delay, self._watch, engine)
        else:
            log.error("engine.stuck", model=self._entry.name, why=fault)
            engine.kill()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _refuse(self, unsound: UnsoundModel) -> None:
        missing = unsound.reason is Reason.NOT_DOWNLOADED
        self._fail(str(unsound), **({"run": self._entry.settings.pull} if missing else {}))

    def _fail(self, reason: str, **facts: str | None) -> None:
        log.error("model.failed", model=self._entry.name, device=self._replica.device, reason=reason, **facts)
        self._replica.become("failed", reason=reason)
        self._audience.replica_failed(self._entry)

    def _load(self) -> Load:
        settings = self._entry.settings
        return Load(
            path=str(settings.path),
            context_tokens=settings.context_tokens,
            sequences=settings.sequences,
            policy=settings.policy,
            max_itl_ms=settings.max_itl_ms,
            reserve_bytes=settings.reserve_bytes,
            saved_bytes=settings.saved_bytes,
            step_target_ms=settings.step_target_ms,
            curves=str(settings.curves) if settings.curves else None,
            threads=settings.threads,
            device=self._replica.device,
            gpu_layers=settings.layers_on(self._replica.device),
            packed=self._packed,
            adapters={name: str(path) for name, path in settings.adapters.items()},
            projector=None if settings.projector is None else str(settings.projector),
            chat_template=None if settings.chat_template is None else str(settings.chat_template),
            speculative=settings.speculative,
            budget_bytes=self._entry.budget_bytes,
        )

    def _hear(self, number: int, message: FromEngine) -> None:
        match message:
            case Loading():
                self._replica.advance(message.done)
            case Ready():
                self._become_ready(number, message)
            case LoadFailed():
                self._load_failed(message)
            case Heartbeat():
                now = self._clock()
                self._vitals.beat(message, now)
                self._replica.counters.take(now, message.counters)
            case Warned():
                log.warning(message.event, model=self._entry.name, **message.facts)
            case _:
                self._audience.engine_said(number, message)

    def _load_failed(self, message: LoadFailed) -> None:
        assert self._engine is not None
        self._engine.send(Quit())
        self._fail(message.reason)

    def _become_ready(self, number: int, ready: Ready) -> None:
        assert self._engine is not None
        self._circuit.ready()
        self._vitals.ready(ready, self._clock())
        if self._entry.state == "draining":
            # It goes as soon as the other replicas have no work.
            return
        self._pause_s = self._patience.first_pause_s
        log.info(
            "capacity.declared",
            model=self._entry.name,
            engine=number,
            capacity=ready.sequences,
            policy=ready.policy,
            context_tokens=ready.context_tokens,
            device=ready.device,
            **ready.inputs,
        )
        self._replica.become("ready", ready=ready)
        self._audience.engine_ready(self._entry, number, self._engine, ready)
