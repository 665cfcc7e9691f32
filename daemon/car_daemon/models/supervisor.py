"""Keeps the engine of one model up: loads it, tells its frames on, starts it again after a death."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Protocol

import structlog

from car_daemon.engine.frames import FromEngine, Heartbeat, Load, LoadFailed, Loading, Ready, Warned
from car_daemon.models.entry import Counters, ModelEntry
from car_daemon.models.link import Engine

log = structlog.get_logger()
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 10.0
_numbers = count(1)

Launcher = Callable[[Callable[[FromEngine], None]], Awaitable[Engine]]


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

    def model_failed(self, entry: ModelEntry) -> None:
        """The model cannot be served."""
        ...


class EngineSupervisor:
    """One model's engine over all its lives."""

    def __init__(self, entry: ModelEntry, launch: Launcher, audience: Audience, *, clock: Callable[[], float]) -> None:
        self._entry = entry
        self._launch = launch
        self._audience = audience
        self._clock = clock
        # Mutable state: the task that runs the lives, and the engine of the present one.
        self._task: asyncio.Task[None] | None = None
        self._engine: Engine | None = None

    def start(self) -> None:
        """Load the model, and load it again whenever its engine dies."""
        self._entry.become("loading")
        self._task = asyncio.create_task(self._live(), name=f"supervisor {self._entry.name}")

    async def stop(self) -> None:
        """End the engine; it is not started again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_engine()

    async def _end_engine(self) -> None:
        if self._engine is not None:
            await self._engine.stop()
            self._engine = None
            self._entry.pid = None

    async def _live(self) -> None:
        backoff = _FIRST_BACKOFF_S
        while True:
            try:
                was_ready = await self._one_life()
            except (OSError, ValueError, OverflowError) as error:
                # No process, no descriptor, or a figure that no frame holds: as good as a death.
                log.error("engine.launch_failed", model=self._entry.name, error=type(error).__name__)  # noqa: TRY400
                was_ready = False
                await self._end_engine()
            if self._entry.state == "failed":
                return
            backoff = _FIRST_BACKOFF_S if was_ready else min(2 * backoff, _LONGEST_BACKOFF_S)
            self._entry.restarts += 1
            self._entry.become("loading")
            log.warning("engine.restarts", model=self._entry.name, restarts=self._entry.restarts, after_s=backoff)
            await asyncio.sleep(backoff)

    async def _one_life(self) -> bool:
        """Run one engine process to its end; tell whether it ever became ready."""
        number = next(_numbers)
        self._engine = engine = await self._launch(lambda message: self._hear(number, message))
        self._entry.pid = engine.pid
        engine.send(self._load())
        await engine.wait()
        was_ready = self._entry.state == "ready"
        self._engine = None
        self._entry.pid = None
        self._entry.counters = Counters()
        self._audience.engine_lost(number)
        log.warning("engine.ended", model=self._entry.name, engine=number)
        return was_ready

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
            gpu_layers=settings.gpu_layers,
            adapters={name: str(path) for name, path in settings.adapters.items()},
            projector=None if settings.projector is None else str(settings.projector),
        )

    def _hear(self, number: int, message: FromEngine) -> None:
        match message:
            case Loading():
                self._entry.progress = message.done
            case Ready():
                self._become_ready(number, message)
            case LoadFailed():
                log.error("model.failed", model=self._entry.name, reason=message.reason)
                self._entry.become("failed", reason=message.reason)
                self._audience.model_failed(self._entry)
            case Heartbeat():
                self._entry.counters.take(self._clock(), message.counters)
            case Warned():
                log.warning(message.event, model=self._entry.name, **message.facts)
            case _:
                self._audience.engine_said(number, message)

    def _become_ready(self, number: int, ready: Ready) -> None:
        assert self._engine is not None
        log.info(
            "capacity.declared",
            model=self._entry.name,
            capacity=ready.sequences,
            policy=ready.policy,
            context_tokens=ready.context_tokens,
            device=ready.device,
            **ready.inputs,
        )
        self._entry.become("ready", ready=ready)
        self._audience.engine_ready(self._entry, number, self._engine, ready)
