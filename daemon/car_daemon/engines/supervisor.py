"""Supervision of a model's engines: the order of their loads, and restarts, failure and retry of each."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from car_base import guide
from car_base.host import defects
from car_base.host.devices import CPU, overlap
from car_base.host.event_log import log
from car_base.host.timers import ConditionWaiters
from car_base.ipc.engine_settings import EngineSettings, members_of
from car_base.ipc.frames import Load, Ready
from car_daemon.engines.binding_check import crawl_advice
from car_daemon.engines.life import EngineLife, EngineListener, HealthLimits
from car_daemon.engines.link import Engine, Launcher
from car_daemon.engines.restart_policy import RestartLimits, RestartPolicy
from car_daemon.gguf.invalid import Flaw, InvalidModel
from car_daemon.models.entry import ModelEntry
from car_daemon.models.memory_estimate import sizes_of
from car_daemon.models.model_files import CheckedFiles
from car_daemon.models.replica import Replica
from car_daemon.models.settings import ModelSettings
from car_protocol.errors import REASONS

if TYPE_CHECKING:
    from car_daemon.gguf.validation import HeaderFacts


class LoadOrder:
    """Numbers engines, and lets one at a time load onto each GPU of this machine.

    Engines that load at once, as they do if a driver's fault ended them, would each find the same memory free.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._loading: list[str] = []  # the devices that engines load onto now
        self._waiters = ConditionWaiters()

    def __repr__(self) -> str:
        return f"<LoadOrder loading={self._loading} {self._waiters!r}>"

    def next_number(self) -> int:
        """Return a number that no other engine of the daemon has."""
        return next(self._numbers)

    async def turn(self, replica: Replica) -> ExitStack:
        """Return once an engine of a replica may load; the caller closes what it gets as soon as that has ended."""
        turn = ExitStack()
        if replica.device != CPU and not replica.placed:
            while not self._is_free(replica.device):
                await self._waiters.until(lambda: self._is_free(replica.device))
            self._loading.append(replica.device)
            turn.callback(self._ended, replica.device)
        return turn

    def _is_free(self, device: str) -> bool:
        return not any(overlap(device, each) for each in self._loading)

    def _ended(self, device: str) -> None:
        self._loading.remove(device)
        self._waiters.changed()


DIED_ALIKE = "two loads died in the same way"
UNSUPERVISED = REASONS["internal_error"].message


class SupervisionLimits(Struct, frozen=True, kw_only=True):
    """When an engine counts as stuck, and how its lives follow each other."""

    health: HealthLimits = HealthLimits()
    restarts: RestartLimits = RestartLimits()
    settle_s: float = 1.0  # files that changed are complete once they stay the same for so long


class EngineSupervisor:
    """Keeps the engine of one replica up; each of its lives has a number, and a turn to load, of the daemon's `order`.

    `check` returns the facts of the model's files; raises InvalidModel for files that must not reach an engine.
    """

    def __init__(
        self,
        entry: ModelEntry,
        replica: Replica,
        launch: Launcher,
        listener: EngineListener,
        *,
        order: LoadOrder,
        clock: Callable[[], float],
        check: Callable[[ModelSettings], Sequence["HeaderFacts"]],
        limits: SupervisionLimits | None = None,
    ) -> None:
        self._entry = entry
        self._replica = replica
        self._launch = launch
        self._listener = listener
        self._order = order
        self._clock = clock
        self._limits = limits or SupervisionLimits()
        self._files = CheckedFiles(entry, replica, check, self._limits.settle_s)
        self._restarts = RestartPolicy(self._limits.restarts)
        self._task: asyncio.Task[None] | None = None
        self._life: EngineLife | None = None  # the present one, or the last
        self._turn = ExitStack()  # of the load that is under way

    def __repr__(self) -> str:
        return f"<EngineSupervisor of {self._entry.name}: {self._replica!r} {self._life!r} {self._restarts!r}>"

    def start(self) -> None:
        """Load the model, and load it again whenever its engine dies."""
        self._replica.become("loading")
        self._task = asyncio.create_task(self._supervise(), name=f"supervisor {self._entry.name}")

    def restart(self) -> None:
        """End the engine at once, because the model's file was overwritten; another one loads it again."""
        if self._life is not None:
            self._life.outdated()

    async def stop(self) -> None:
        """End the engine; it is not started again until `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._end_life()
        self._replica.retire()

    # Reports of the present life.

    def loaded(self, number: int, link: Engine, ready: Ready) -> None:
        """Have the replica served, unless its model drains: then it goes as soon as the other replicas are idle."""
        self._turn.close()
        self._restarts.ready()
        if self._entry.state == "draining":
            return
        ready = _where(self._entry, ready)
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
        crawl = _crawl(self._entry, ready)
        if crawl is not None:
            log.warning("engine.slow", model=self._entry.name, engine=number, why=crawl)
        self._replica.become("ready", ready=ready)
        self._listener.engine_ready(self._entry, number, link, ready)

    def load_failed(self, reason: str, **facts: str | None) -> None:
        """Mark the replica failed and have the requests answered that only it could have served."""
        reason = "; ".join([reason, *self._files.warnings])
        log.error("model.failed", model=self._entry.name, device=self._replica.device, reason=reason, **facts)
        self._replica.become("failed", reason=reason)
        self._listener.replica_failed(self._entry)

    # One life after the other.

    async def _supervise(self) -> None:
        """Run the lives; a defect in here ends the engine and answers its requests, whichever of the steps fail too."""
        try:
            await self._run_lives()
        except Exception as error:  # noqa: BLE001 - the task is not awaited
            defects.report("supervisor.failed", error, model=self._entry.name)
            try:
                # The stack calls back in reverse order, and each callback whichever of the others raise.
                async with AsyncExitStack() as stack:
                    stack.callback(self._listener.replica_failed, self._entry)
                    stack.push_async_callback(self._end_life)
                    stack.callback(self._replica.become, "failed", reason=UNSUPERVISED)
            except Exception as another:  # noqa: BLE001 - nothing is left to do
                defects.report("supervisor.failed", another, model=self._entry.name)
            self._life = None

    async def _run_lives(self) -> None:
        """Run engines one after the other until the model cannot be served, or drains."""
        while True:
            ending = await self._run_life()
            if self._replica.state != "failed":
                # The loss of a machine says nothing about the engine, so that it is never given up for that.
                was_cut = self._life is not None and self._life.cut
                backoff_s = 0.0 if was_cut else self._restarts.died(self._clock())
                if isinstance(backoff_s, str):
                    self.load_failed(f"{backoff_s}; the last one {ending}")
                else:
                    self._replica.restart()
                    restarts = self._replica.restarts
                    log.warning("engine.restarts", model=self._entry.name, restarts=restarts, after_s=backoff_s)
                    await asyncio.sleep(backoff_s)
            if self._replica.state == "failed":
                if is_missed(self._entry, self._replica):
                    await asyncio.sleep(self._restarts.cool_down_s)
                if not is_missed(self._entry, self._replica):
                    return
                self._restarts.try_again()
                self._replica.restart()
            if self._entry.state == "draining":
                # The replica goes as soon as the other replicas are idle.
                return

    async def _run_life(self) -> str:
        """Run one engine process to its end, for files that may be loaded; return how it ended."""
        self._entry.refresh(self._replica)
        try:
            facts = await self._files.check()
            with await self._order.turn(self._replica) as self._turn:
                self._life = life = EngineLife(
                    self._order.next_number(),
                    self._entry,
                    self._replica,
                    self._listener,
                    loaded=self.loaded,
                    load_failed=self.load_failed,
                    limits=self._limits.health,
                    clock=self._clock,
                )
                load = load_of(self._entry, self._replica, facts, packed=self._restarts.packed)
                status = await life.run(self._launch, load)
        except InvalidModel as invalid:
            missing = invalid.reason is Flaw.NOT_DOWNLOADED
            self.load_failed(str(invalid), **({"run": self._entry.settings.pull} if missing else {}))
            return "was not started"
        except Exception as error:  # noqa: BLE001 - no process, no descriptor, a figure too large for a frame: a death
            log.error("engine.launch_failed", model=self._entry.name, error=type(error).__name__)
            await self._end_life()
            return f"did not start: {type(error).__name__}"
        hang = None if life.hang is None else life.hang.why
        why = life.fault or hang
        log.warning(
            "engine.ended",
            model=self._entry.name,
            engine=life.number,
            status=status,
            **({} if why is None else {"why": why}),
        )
        ending = ending_of(status, why)
        if self._replica.state == "loading" and not life.overwritten and not life.cut:
            self._died_loading(life, status, ending)
        return ending

    def _died_loading(self, life: EngineLife, status: int, ending: str) -> None:
        """Fail the load if an earlier load died alike; else the next engine tries, perhaps packing otherwise."""
        cause = life.defect if life.hang is None else life.hang.part
        packed = self._restarts.packed
        if self._restarts.died_loading(status, cause):
            self.load_failed(f"{DIED_ALIKE}; the last one {ending}")
        elif packed and not self._restarts.packed:
            log.warning("engine.unpacked", model=self._entry.name, device=self._replica.device)

    async def _end_life(self) -> None:
        if self._life is not None:
            await self._life.end()


def _crawl(entry: ModelEntry, ready: Ready) -> str | None:
    """Return advice if the guide, whose speed is known, shows that llama.cpp was not built for this CPU."""
    speed = ready.inputs.get("tokens_per_s_1")
    return crawl_advice(speed) if entry.settings.path == guide.PATH and speed is not None else None


def is_missed(entry: ModelEntry, replica: Replica) -> bool:
    """Return whether a replica served and its model is kept up: the default one, or one that others serve."""
    return replica.served and (entry.default or bool(entry.replicas.serving))


def ending_of(status: int, why: str | None) -> str:
    """Return how an engine ended: by the daemon and why, its exit status or its signal."""
    if why is not None:
        return f"was ended by the daemon: {why}"
    if status >= 0:
        return f"exited with status {status}"
    return f"was ended by signal {-status} ({signal.strsignal(-status)})"


def _where(entry: ModelEntry, ready: Ready) -> Ready:
    """Return the frame with the CPU as its device if the model has no stated device and no layer of it fits a GPU."""
    left_out = entry.settings.auto and ready.devices and not any(use.slots for use in ready.devices)
    return structs.replace(ready, device=CPU) if left_out else ready


def _sharing(entry: ModelEntry, replica: Replica) -> int:
    """Return the replicas that load onto the GPUs of one, itself among them."""
    loading = [each for each in entry.replicas if each.state == "loading" and each is not replica]
    return 1 + sum(overlap(each.device, replica.device) for each in loading)


def load_of(entry: ModelEntry, replica: Replica, facts: Sequence["HeaderFacts"], *, packed: bool) -> Load:
    """Return the frame that has an engine load a replica of a model as it is configured, by the facts of its files."""
    settings = entry.settings
    return Load(
        **members_of(EngineSettings, settings),
        path=str(settings.path),
        curves=str(settings.curves) if settings.curves else None,
        device=replica.device,
        stated=not settings.auto,
        gpu_layers=settings.layers_on(replica.device),
        sharing=_sharing(entry, replica),
        sizes=sizes_of(facts, settings) if facts and settings.layers_on(replica.device) else None,
        packed=packed,
        adapters={name: str(path) for name, path in settings.adapters.items()},
        projector=None if settings.projector is None else str(settings.projector),
        chat_template=None if settings.chat_template is None else str(settings.chat_template),
        budget_bytes=entry.budget_bytes,
        cells=_cells_folder(entry, replica),
        cells_bytes=settings.cache_bytes if settings.cache_dir is not None else 0,
    )


def _cells_folder(entry: ModelEntry, replica: Replica) -> str | None:
    """Return the folder of a replica's stored cells: a file that means harm can read the cells of its own model alone.

    An engine on another machine stores none: the prompts of this machine's users stay on its disks.
    """
    settings = entry.settings
    if settings.cache_dir is None or replica.placed:
        return None
    # A name may have slashes, or be that of the folder above.
    name = "".join(each if each.isalnum() or each in "-_" else f"%{ord(each):x}" for each in entry.name)
    return str(settings.cache_dir / name / replica.device)


class ReplicaSet:
    """A supervisor for each replica of a model, made by `supervise`."""

    def __init__(self, entry: ModelEntry, supervise: Callable[[ModelEntry, Replica], EngineSupervisor]) -> None:
        self._entry = entry
        self._supervise = supervise
        # A replica that is started again keeps its supervisor, which counts the deaths of its engines.
        self._supervisors: dict[Replica, EngineSupervisor] = {}

    def __repr__(self) -> str:
        return f"<ReplicaSet of {self._entry.name}: {list(self._supervisors.values())}>"

    def start(self) -> None:
        """Load the model as it is configured now."""
        replicas = self._entry.renew()
        self._supervisors = {
            each: self._supervisors.get(each) or self._supervise(self._entry, each) for each in replicas
        }
        for supervisor in self._supervisors.values():
            supervisor.start()

    def grow(self) -> None:
        """Load the further replicas of a model whose configuration has more replicas on a cluster."""
        if _is_larger(self._entry.configured, self._entry.settings):
            further = [each for each in self._entry.renew() if each not in self._supervisors]
            for replica in further:
                self._supervisors[replica] = self._supervise(self._entry, replica)
                self._supervisors[replica].start()

    def restart(self) -> None:
        """End all engines at once and load the model again."""
        for supervisor in self._supervisors.values():
            supervisor.restart()

    async def stop(self) -> None:
        """End all engines."""
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors.values()))


def _is_larger(after: ModelSettings, before: ModelSettings) -> bool:
    """Return whether settings differ by more engines on a cluster alone."""
    more = after.placed and after.replicas > before.replicas
    return more and after == structs.replace(before, replicas=after.replicas)
