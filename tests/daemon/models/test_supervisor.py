"""An engine over its lives: restarts, hangs, the circuit, and files that no engine may see."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from msgspec import Struct
from structlog.testing import capture_logs

from car_daemon.engine.frames import FromEngine, Heartbeat, Load, LoadFailed, Quit, Ready
from car_daemon.models.circuit import CircuitLimits
from car_daemon.models.entry import ModelEntry, ModelSettings
from car_daemon.models.link import Engine
from car_daemon.models.parts import check_files
from car_daemon.models.replica import Replica
from car_daemon.models.supervisor import DIED_TOO_OFTEN, UNSUPERVISED, EngineSupervisor, Patience
from car_daemon.models.unsound import Reason, UnsoundModel
from car_daemon.models.vitals import VitalLimits
from tests.daemon.links import ready_of

READY = ready_of(kv_bytes=1)
PATIENCE = Patience(
    vitals=VitalLimits(silence_s=0.01, look_every_s=0.001),
    circuit=CircuitLimits(deaths=3, cool_down_s=0.001),
    first_pause_s=0.0,
)


class FakeEngine:
    """An engine that says and suffers what the test wants; `told` hears of it once it has its model to load."""

    pid = 4242

    def __init__(self, hear: Callable[[FromEngine], None], told: Callable[["FakeEngine"], None]) -> None:
        self.hear = hear
        self._told = told
        self.sent: list[Struct] = []
        self.killed = False
        self._status = 0
        self._gone = asyncio.Event()

    def send(self, message: Struct) -> None:
        self.sent.append(message)
        if isinstance(message, Load):
            self._told(self)
        if isinstance(message, Quit):
            self.die()

    async def wait(self) -> int:
        await self._gone.wait()
        return self._status

    def die(self, status: int = 0) -> None:
        self._status = status
        self._gone.set()

    def kill(self) -> None:
        self.killed = True
        self.die()

    async def stop(self) -> None:
        self.die()


class World:
    """One model, its engines in order, and what the audience heard."""

    def __init__(self, check: Callable[[ModelSettings], object], refuse_launch: bool) -> None:
        self.now = 0.0
        self.heard: list[str] = []
        self.engines: asyncio.Queue[FakeEngine] = asyncio.Queue()
        self.changed = asyncio.Event()
        self._refuse_launch = refuse_launch
        self.entry = ModelEntry("m", ModelSettings(Path("m")), default=True, on_change=lambda _: self.changed.set())
        self.replica = self.entry.replicas[0]
        self.supervisor = EngineSupervisor(
            self.entry,
            self.replica,
            self.launch,
            self,
            numbers=count(1),
            clock=lambda: self.now,
            patience=PATIENCE,
            check=check,
        )

    async def launch(self, hear: Callable[[FromEngine], None]) -> Engine:
        if self._refuse_launch:
            raise OSError("no process")
        return FakeEngine(hear, self.engines.put_nowait)

    async def next_engine(self) -> FakeEngine:
        return await self.engines.get()

    async def becomes(self, state: str) -> None:
        while self.entry.state != state:
            self.changed.clear()
            await self.changed.wait()

    def engine_ready(self, entry: ModelEntry, engine: int, link: Engine, ready: Ready) -> None:
        self.heard.append("ready")

    def engine_said(self, engine: int, message: FromEngine) -> None:
        self.heard.append("said")

    def engine_lost(self, engine: int) -> None:
        self.heard.append("lost")

    def replica_failed(self, entry: ModelEntry) -> None:
        self.heard.append("failed")


@asynccontextmanager
async def supervised(
    check: Callable[[ModelSettings], object] = lambda _: None, *, refuse_launch: bool = False
) -> AsyncIterator[World]:
    """A supervisor at work; every wait has a limit."""
    world = World(check, refuse_launch)
    async with asyncio.timeout(10):
        world.supervisor.start()
        yield world
        await world.supervisor.stop()


async def test_an_engine_that_died_is_followed_by_another() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.hear(READY)
        first.die()
        second = await world.next_engine()
        assert isinstance(second.sent[0], Load)
        assert (world.entry.state, world.replica.restarts, world.heard) == ("loading", 1, ["ready", "lost"])


@pytest.mark.parametrize(
    ("status", "packed"), [(-signal.SIGSEGV, [False, True]), (-signal.SIGKILL, [True, True]), (1, [True, True])]
)
async def test_an_engine_that_crashed_while_it_loaded_is_followed_by_one_that_packs_otherwise(
    status: int, packed: list[bool]
) -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        for expected in packed:
            engine.die(status)
            engine = await world.next_engine()
            assert [load.packed for load in engine.sent if isinstance(load, Load)] == [expected]


async def test_an_engine_that_crashed_at_work_is_followed_by_one_with_packed_weights() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.hear(READY)
        first.die(-signal.SIGSEGV)
        second = await world.next_engine()
        assert [load.packed for load in second.sent if isinstance(load, Load)] == [True]


async def test_a_supervisor_that_was_stopped_says_that_its_engine_is_gone_and_may_start_another() -> None:
    async with supervised() as world:
        (await world.next_engine()).hear(READY)
        await world.supervisor.stop()
        assert (world.heard, world.replica.pid) == (["ready", "lost"], None)
        world.entry.become("unloaded")
        world.supervisor.start()
        (await world.next_engine()).hear(READY)
        assert world.entry.state == "ready"


async def test_a_model_that_is_not_the_default_one_and_failed_waits_for_who_asks() -> None:
    async with supervised() as world:
        world.entry.default = False
        (await world.next_engine()).hear(READY)
        await world.supervisor.stop()
        world.supervisor.start()
        (await world.next_engine()).hear(LoadFailed("a fixed text"))
        await asyncio.sleep(0.01)  # nothing announces what does not happen
        assert (world.entry.state, world.engines.empty()) == ("failed", True)


async def test_a_replica_that_failed_is_not_tried_again_once_the_rest_of_its_model_failed_too() -> None:
    async with supervised() as world:
        world.entry.default = False
        other = Replica("cpu", lambda: None, lambda: None)
        world.entry.replicas.append(other)
        other.become("ready", ready=READY)
        for _ in range(PATIENCE.circuit.deaths):
            engine = await world.next_engine()
            engine.hear(READY)
            engine.die()
        while world.replica.state != "failed":
            world.changed.clear()
            await world.changed.wait()
        other.become("failed", reason="a fixed text")
        task = world.supervisor._task
        assert task is not None
        await task
        assert world.engines.empty()


async def test_a_replica_that_becomes_ready_while_its_model_drains_is_not_used() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        world.entry.become("draining")
        engine.hear(READY)
        assert (world.heard, world.replica.ready, world.entry.state) == ([], None, "draining")


async def test_an_engine_without_heartbeats_is_killed_and_replaced() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.hear(READY)
        for step in range(20):
            world.now += 0.001
            first.hear(Heartbeat(step, 0.0, {}))
            await asyncio.sleep(0.001)
        assert not first.killed
        while not first.killed:
            world.now += 0.001
            await asyncio.sleep(0.001)
        assert (await world.next_engine()) is not first


async def test_an_engine_whose_step_does_not_end_is_killed_and_replaced() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.hear(READY)
        first.hear(Heartbeat(7, 10_500.0, {}))
        await world.next_engine()
        assert first.killed
        assert world.heard == ["ready", "lost"]


async def test_a_model_whose_engine_dies_too_often_fails_and_is_tried_again_after_a_while() -> None:
    async with supervised() as world:
        for _ in range(3):
            engine = await world.next_engine()
            engine.hear(READY)
            engine.die()
        await world.becomes("failed")
        assert (world.entry.reason, world.heard[-1]) == (DIED_TOO_OFTEN, "failed")
        trial = await world.next_engine()
        assert (world.entry.state, world.entry.reason) == ("loading", None)
        trial.hear(READY)
        assert world.entry.state == "ready"


async def test_a_trial_that_dies_fails_the_model_again_at_once() -> None:
    async with supervised() as world:
        for _ in range(3):
            engine = await world.next_engine()
            engine.hear(READY)
            engine.die()
        (await world.next_engine()).die()
        await world.becomes("failed")
        assert world.heard.count("failed") == 2


async def test_a_model_that_was_never_loaded_is_not_tried_for_ever() -> None:
    async with supervised() as world:
        for _ in range(3):
            (await world.next_engine()).die()
        await world.becomes("failed")
        assert (world.entry.reason, world.heard) == (DIED_TOO_OFTEN, ["lost", "lost", "lost", "failed"])


async def test_an_engine_that_cannot_even_be_started_counts_as_one_that_died() -> None:
    async with supervised(refuse_launch=True) as world:
        await world.becomes("failed")
        assert (world.entry.reason, world.replica.restarts) == (DIED_TOO_OFTEN, 2)


async def test_an_engine_that_could_not_load_its_model_is_told_to_go() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        engine.hear(LoadFailed("a fixed text"))
        assert (world.entry.state, world.entry.reason) == ("failed", "a fixed text")
        assert isinstance(engine.sent[-1], Quit)


async def test_a_model_that_was_served_and_cannot_be_loaded_any_more_is_tried_again_after_a_while() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.hear(READY)
        first.die()
        (await world.next_engine()).hear(LoadFailed("a fixed text"))
        assert (world.entry.state, world.entry.reason) == ("failed", "a fixed text")
        (await world.next_engine()).hear(READY)
        assert world.entry.state == "ready"


async def test_no_engine_sees_an_unsound_file() -> None:
    def refuse(settings: ModelSettings) -> None:
        raise UnsoundModel(Reason.OVERLAP)

    async with supervised(refuse) as world:
        await world.becomes("failed")
        assert (world.entry.reason, world.heard, world.engines.empty()) == ("tensors overlap", ["failed"], True)


async def test_a_file_that_was_not_downloaded_is_told_with_the_command_that_downloads_it(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    with capture_logs() as logs:
        async with supervised(check_files) as world:
            await world.supervisor.stop()
            world.entry.configured = ModelSettings(file, pull="carctl models pull hf:o/r/m.gguf")
            world.supervisor.start()
            await world.becomes("failed")
            assert (world.entry.reason, world.engines.empty()) == ("the file has not been downloaded", True)
            assert not world.entry.may_try_again
            file.touch()
            assert world.entry.may_try_again
    (told,) = [each for each in logs if each.get("run")]
    assert (told["event"], told["run"]) == ("model.failed", "carctl models pull hf:o/r/m.gguf")


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), OSError()])
async def test_a_check_that_fails_in_another_way_is_no_end_of_the_supervisor(error: Exception) -> None:
    def fail(settings: ModelSettings) -> None:
        raise error

    async with supervised(fail) as world:
        await world.becomes("failed")
        assert world.entry.reason == DIED_TOO_OFTEN


@pytest.mark.parametrize("fails", ["engine_lost", "replica_failed"])
async def test_a_supervisor_that_fails_says_so_and_has_everything_answered(fails: str) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a defect")

    with capture_logs() as logs:
        async with supervised() as world:
            engine = await world.next_engine()
            engine.hear(READY)
            setattr(world.supervisor, "_pause", fail)  # noqa: B010 - it is no method of the protocol
            setattr(world, fails, fail)
            engine.die()
            while world.entry.reason != UNSUPERVISED:
                world.changed.clear()
                await world.changed.wait()
            await asyncio.sleep(0)
    assert world.entry.state == "failed"
    assert ("lost" in world.heard) == (fails != "engine_lost")
    assert {entry["error"] for entry in logs if entry["event"] == "supervisor.failed"} >= {"ValueError"}
    assert ("failed" in world.heard) == (fails != "replica_failed")


async def test_who_fails_when_it_hears_of_a_death_hears_of_it_again() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        engine.hear(READY)
        heard, lost = world.engine_lost, []

        def fail_once(number: int) -> None:
            lost.append(number)
            if len(lost) == 1:
                raise ValueError("a defect")
            heard(number)

        setattr(world, "engine_lost", fail_once)  # noqa: B010 - mypy takes it for a method
        engine.die()
        await world.next_engine()
    assert lost[:2] == [lost[0]] * 2
