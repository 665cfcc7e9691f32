"""An engine over its lives: restarts, hangs, the circuit, and files that must not reach an engine."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Struct, structs

from car_base import guide
from car_base.ipc.frames import (
    DeviceUse,
    FromEngine,
    Heartbeat,
    Load,
    LoadFailed,
    Overwritten,
    Quit,
    Ready,
    RunningJob,
    Warned,
)
from car_daemon.engines.cell_keeper import CellKeeper
from car_daemon.engines.life import HealthLimits
from car_daemon.engines.link import Engine
from car_daemon.engines.restart_policy import CircuitLimits, RestartLimits
from car_daemon.engines.supervisor import UNSUPERVISED, EngineSupervisor, LoadOrder, SupervisionLimits, load_of
from car_daemon.gguf.invalid import Flaw, InvalidModel
from car_daemon.gguf.validation import HeaderFacts, check
from car_daemon.models.entry import ModelEntry
from car_daemon.models.model_files import check_files
from car_daemon.models.replica import Replica
from car_daemon.models.settings import ModelSettings
from tests.daemon.captured_log import capture_logs
from tests.daemon.gguf.files import Gguf, tensor
from tests.daemon.links import ready_of
from tests.pace import HANG_S

READY = ready_of(kv_bytes=1)
LIMITS = SupervisionLimits(
    health=HealthLimits(silence_s=0.01, look_every_s=0.001),
    restarts=RestartLimits(circuit=CircuitLimits(deaths=3, cool_down_s=0.001), first_backoff_s=0.0),
    settle_s=0.01,
)
Check = Callable[[ModelSettings], list[HeaderFacts]]
SAME_WAY = "two loads died in the same way; the last one "
NEVER_LOADED = "the engine died 3 times before the model was loaded; the last one "


class FakeEngine:
    """An engine that obeys the test; `on_load` is called once it was sent its model to load."""

    pid = 4242
    fault: str | None = None
    host: str | None = None
    cut = False

    def __init__(self, receive: Callable[[FromEngine], None], on_load: Callable[["FakeEngine"], None]) -> None:
        self.receive = receive
        self._on_load = on_load
        self.sent: list[Struct] = []
        self.killed = False
        self.waited: dict[str, float] = {}  # for a core, by thread
        self._status = 0
        self._gone = asyncio.Event()

    def waits(self) -> dict[str, float]:
        return dict(self.waited)

    def send(self, message: Struct) -> None:
        self.sent.append(message)
        if isinstance(message, Load):
            self._on_load(self)
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
    """One model, its engines in order, and the events that its listener received."""

    def __init__(
        self, check: Check, refuse_launch: bool, order: LoadOrder | None = None, limits: SupervisionLimits = LIMITS
    ) -> None:
        self.now = 0.0
        self.clock: Callable[[], float] = lambda: self.now
        self.events: list[str] = []
        self.suspects: list[int | None] = []  # the requests at which lost engines hung
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
            order=order or LoadOrder(),
            clock=lambda: self.clock(),
            limits=limits,
            check=check,
        )

    async def launch(self, receive: Callable[[FromEngine], None], _: CellKeeper | None) -> Engine:
        if self._refuse_launch:
            raise OSError("no process")
        return FakeEngine(receive, self.engines.put_nowait)

    async def next_engine(self) -> FakeEngine:
        return await self.engines.get()

    async def becomes(self, state: str) -> None:
        while self.entry.state != state:
            self.changed.clear()
            await self.changed.wait()

    def engine_ready(self, entry: ModelEntry, engine: int, link: Engine, ready: Ready) -> None:
        self.events.append("ready")

    def frame_received(self, engine: int, message: FromEngine) -> None:
        self.events.append("frame")

    def engine_lost(self, engine: int, suspect: int | None = None) -> None:
        self.events.append("lost")
        self.suspects.append(suspect)

    def replica_failed(self, entry: ModelEntry) -> None:
        self.events.append("failed")


@asynccontextmanager
async def supervised(
    check: Check = lambda _: [],
    *,
    refuse_launch: bool = False,
    device: str = "cpu",
    order: LoadOrder | None = None,
    limits: SupervisionLimits = LIMITS,
) -> AsyncIterator[World]:
    """A supervisor at work; every wait has a limit."""
    world = World(check, refuse_launch, order, limits)
    world.replica.device = device
    async with asyncio.timeout(HANG_S):
        world.supervisor.start()
        yield world
        await world.supervisor.stop()


async def test_an_engine_that_died_is_followed_by_another() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.receive(READY)
        first.die()
        second = await world.next_engine()
        assert isinstance(second.sent[0], Load)
        assert (world.entry.state, world.replica.restarts, world.events) == ("loading", 1, ["ready", "lost"])


@pytest.mark.parametrize(
    ("path", "inputs", "slow"),
    [
        (guide.PATH, {"tokens_per_s_1": 40.0}, True),
        (guide.PATH, {"tokens_per_s_1": 12000.0}, False),
        (guide.PATH, {}, False),
        (Path("a-70B.gguf"), {"tokens_per_s_1": 1.0}, False),
    ],
)
async def test_a_guide_that_is_decoded_slowly_is_logged_with_what_to_do(
    path: Path, inputs: dict[str, float], slow: bool
) -> None:
    with capture_logs() as logs:
        async with supervised() as world:
            await world.supervisor.stop()
            world.entry.configured = ModelSettings(path)
            world.supervisor.start()
            while not world.engines.empty():
                world.engines.get_nowait()
            (await world.next_engine()).receive(ready_of(kv_bytes=1, inputs=inputs))
    found = [event["why"] for event in logs if event["event"] == "engine.slow"]
    assert ["40 tokens/s with the built-in model, where 500 are the least" in why for why in found] == [True] * slow


async def test_engines_of_two_models_that_died_together_load_onto_their_gpu_one_after_the_other() -> None:
    order = LoadOrder()
    async with supervised(device="gpu", order=order) as one:
        first = await one.next_engine()
        async with supervised(device="gpu", order=order) as other:
            first.receive(READY)
            second = await other.next_engine()
            second.receive(READY)
            first.die()
            again = await one.next_engine()
            second.die()
            await other.becomes("loading")
            await asyncio.sleep(0.01)  # nothing announces what does not happen
            assert other.engines.empty()
            again.receive(LoadFailed("a fixed text"))
            (await other.next_engine()).receive(READY)
            assert (one.entry.state, other.entry.state) == ("failed", "ready")


async def test_an_engine_on_the_cpu_loads_while_another_one_loads_onto_a_gpu() -> None:
    order = LoadOrder()
    async with supervised(device="gpu", order=order) as one, supervised(order=order) as other:
        await one.next_engine()
        (await other.next_engine()).receive(READY)
        assert (one.entry.state, other.entry.state) == ("loading", "ready")


async def test_a_model_that_is_stopped_while_it_waits_for_its_turn_gives_it_to_the_next_one() -> None:
    order = LoadOrder()
    async with supervised(device="gpu", order=order) as one:
        loading = await one.next_engine()
        async with supervised(device="gpu", order=order) as other:
            await asyncio.sleep(0)
            await other.supervisor.stop()
            loading.receive(READY)
            other.supervisor.start()
            (await other.next_engine()).receive(READY)
            assert other.entry.state == "ready"


@pytest.mark.parametrize(
    ("auto", "slots", "device"),
    [(True, [0, 0], "cpu"), (True, [0, 3], "gpu"), (True, [], "gpu"), (False, [0], "gpu")],
)
async def test_a_model_without_a_stated_device_of_which_nothing_is_on_a_gpu_is_on_the_cpu(
    auto: bool, slots: list[int], device: str
) -> None:
    async with supervised() as world:
        world.entry.settings = ModelSettings(Path("m"), devices=("gpu",), auto=auto)
        engine = await world.next_engine()
        uses = [DeviceUse(f"CUDA{number}", count, 0, 0, 1, 2) for number, count in enumerate(slots)]
        engine.receive(structs.replace(ready_of(device="gpu"), devices=uses))
        assert (world.replica.serves_on, world.entry.replicas.device) == (device, device)


def test_replicas_that_load_onto_the_same_gpu_share_it_and_one_that_is_loaded_again_gets_what_is_left() -> None:
    settings = ModelSettings(Path("m"), devices=("gpu0", "gpu1", "cpu"), gpu_layers=-1, replicas=2)
    entry = ModelEntry("m", settings, default=False, on_change=lambda _: None)
    for replica in entry.replicas:
        replica.become("loading")
    sharing = {each.device: load_of(entry, each, [], packed=True).sharing for each in entry.replicas}
    assert sharing == {"gpu0": 2, "gpu1": 2, "cpu": 1}
    first, *others = entry.replicas
    for replica in others:
        replica.become("ready", ready=READY)
    assert load_of(entry, first, [], packed=True).sharing == 1
    anywhere = ModelEntry(
        "m", ModelSettings(Path("m"), devices=("gpu", "gpu1")), default=False, on_change=lambda _: None
    )
    for replica in anywhere.replicas:
        replica.become("loading")
    assert [load_of(anywhere, each, [], packed=True).sharing for each in anywhere.replicas] == [2, 2]


@pytest.mark.parametrize(
    ("status", "packed"), [(-signal.SIGSEGV, [False]), (-signal.SIGKILL, [True, True]), (1, [True, True])]
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
        first.receive(READY)
        first.die(-signal.SIGSEGV)
        second = await world.next_engine()
        assert [load.packed for load in second.sent if isinstance(load, Load)] == [True]


async def test_a_supervisor_that_was_stopped_reports_the_loss_of_its_engine_and_may_start_another() -> None:
    async with supervised() as world:
        (await world.next_engine()).receive(READY)
        await world.supervisor.stop()
        assert (world.events, world.replica.pid) == (["ready", "lost"], None)
        world.entry.become("unloaded")
        world.supervisor.start()
        (await world.next_engine()).receive(READY)
        assert world.entry.state == "ready"


async def test_a_model_that_is_not_the_default_one_and_failed_waits_for_a_request() -> None:
    async with supervised() as world:
        world.entry.default = False
        (await world.next_engine()).receive(READY)
        await world.supervisor.stop()
        world.supervisor.start()
        (await world.next_engine()).receive(LoadFailed("a fixed text"))
        await asyncio.sleep(0.01)  # nothing announces what does not happen
        assert (world.entry.state, world.engines.empty()) == ("failed", True)


async def test_a_replica_that_failed_is_not_tried_again_once_the_rest_of_its_model_failed_too() -> None:
    async with supervised() as world:
        world.entry.default = False
        other = Replica("cpu", lambda: None, lambda: None)
        world.entry.replicas.append(other)
        other.become("ready", ready=READY)
        for _ in range(LIMITS.restarts.circuit.deaths):
            engine = await world.next_engine()
            engine.receive(READY)
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
        engine.receive(READY)
        assert (world.events, world.replica.ready, world.entry.state) == ([], None, "draining")


async def test_an_engine_without_heartbeats_is_killed_and_replaced() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.receive(READY)
        for step in range(20):
            world.now += 0.001
            first.receive(Heartbeat(step, 0.0, {}))
            await asyncio.sleep(0.001)
        assert not first.killed
        while not first.killed:
            world.now += 0.001
            await asyncio.sleep(0.001)
        assert (await world.next_engine()) is not first


async def test_an_engine_with_a_thread_that_waits_for_a_core_may_be_silent_for_longer() -> None:
    health = HealthLimits(silence_s=0.01, loading_silence_s=0.06, look_every_s=0.001)
    async with supervised(limits=structs.replace(LIMITS, health=health)) as world:
        engine = await world.next_engine()
        engine.receive(READY)
        while not engine.killed:
            world.now += 0.001
            engine.waited = {"1": 7.0, "2": 1.0 + world.now}
            await asyncio.sleep(0.001)
        assert world.now > 0.06


async def test_an_engine_whose_step_does_not_end_is_killed_and_replaced() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.receive(READY)
        first.receive(Heartbeat(7, 10_500.0, {}))
        await world.next_engine()
        assert first.killed
        assert world.events == ["ready", "lost"]


async def test_an_engine_that_hangs_at_a_request_is_killed_and_its_loss_names_the_request() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.receive(READY)
        first.receive(Heartbeat(7, 0.0, {}, RunningJob(5_500.0, 100, 3)))
        await world.next_engine()
        assert (first.killed, world.events, world.suspects) == (True, ["ready", "lost"], [3])


async def test_an_engine_that_finds_its_weights_overwritten_is_ended_and_no_request_is_blamed() -> None:
    with capture_logs() as logs:
        async with supervised() as world:
            first = await world.next_engine()
            first.receive(READY)
            first.receive(Overwritten())
            await world.next_engine()
            assert (first.killed, world.events, world.suspects) == (True, ["ready", "lost"], [-1])
    assert [entry["change"] for entry in logs if entry["event"] == "model.file_changed"] == ["overwritten"]


async def test_a_load_that_met_the_same_defect_twice_is_not_tried_again() -> None:
    async with supervised() as world:
        for _ in range(2):
            engine = await world.next_engine()
            engine.receive(Warned("engine.failed", {"thread": "loader", "fault": "MemoryError at x:1"}))
            engine.die(1)
        await world.becomes("failed")
        assert world.entry.reason == "two loads died in the same way; the last one exited with status 1"


async def test_a_model_whose_engine_dies_too_often_fails_and_is_tried_again_after_a_while() -> None:
    async with supervised() as world:
        for _ in range(3):
            engine = await world.next_engine()
            engine.receive(READY)
            engine.die()
        await world.becomes("failed")
        assert (world.entry.reason, world.events[-1]) == (
            "the engine died 3 times within 30 s; the last one exited with status 0",
            "failed",
        )
        trial = await world.next_engine()
        assert (world.entry.state, world.entry.reason) == ("loading", None)
        trial.receive(READY)
        assert world.entry.state == "ready"


async def test_engines_whose_machines_are_lost_are_followed_by_others_however_many_they_are() -> None:
    async with supervised() as world:
        for number in range(20):
            engine = await world.next_engine()
            if number % 2:
                engine.receive(READY)
            engine.cut = True
            engine.die(255)
        engine = await world.next_engine()
        engine.receive(READY)
        assert (world.entry.state, world.replica.restarts, "failed" in world.events) == ("ready", 20, False)


async def test_a_trial_that_dies_fails_the_model_again_at_once() -> None:
    async with supervised() as world:
        for _ in range(3):
            engine = await world.next_engine()
            engine.receive(READY)
            engine.die()
        (await world.next_engine()).die()
        await world.becomes("failed")
        assert world.events.count("failed") == 2


async def test_a_model_that_was_never_loaded_is_not_tried_for_ever() -> None:
    async with supervised() as world:
        for _ in range(3):
            (await world.next_engine()).die()
        await world.becomes("failed")
        reason = NEVER_LOADED + "exited with status 0"
        assert (world.entry.reason, world.events) == (reason, ["lost", "lost", "lost", "failed"])


async def test_an_engine_whose_link_the_daemon_ended_counts_as_one_that_died_for_that_reason() -> None:
    fault = "a frame announces 4,294,967,295 bytes, the limit is 67,108,864"
    with capture_logs() as logs:
        async with supervised() as world:
            for _ in range(3):
                engine = await world.next_engine()
                engine.fault = fault
                engine.die(-signal.SIGKILL)
            await world.becomes("failed")
            assert world.entry.reason == NEVER_LOADED + f"was ended by the daemon: {fault}"
    assert [entry["why"] for entry in logs if entry["event"] == "engine.ended"] == [fault] * 3


async def test_an_engine_that_cannot_even_be_started_counts_as_one_that_died() -> None:
    async with supervised(refuse_launch=True) as world:
        await world.becomes("failed")
        assert (world.entry.reason, world.replica.restarts) == (NEVER_LOADED + "did not start: OSError", 2)


async def test_an_engine_that_could_not_load_its_model_is_sent_quit() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        engine.receive(LoadFailed("a fixed text"))
        assert (world.entry.state, world.entry.reason) == ("failed", "a fixed text")
        assert isinstance(engine.sent[-1], Quit)


async def test_a_model_that_was_served_and_cannot_be_loaded_any_more_is_tried_again_after_a_while() -> None:
    async with supervised() as world:
        first = await world.next_engine()
        first.receive(READY)
        first.die()
        (await world.next_engine()).receive(LoadFailed("a fixed text"))
        assert (world.entry.state, world.entry.reason) == ("failed", "a fixed text")
        (await world.next_engine()).receive(READY)
        assert world.entry.state == "ready"


@pytest.mark.parametrize(
    ("name", "device", "placed", "folder"),
    [
        ("mine", "cpu", False, "/cells/mine/cpu"),
        ("mine", "gpu0", False, "/cells/mine/gpu0"),
        ("owner/repo:q4.gguf", "cpu", False, "/cells/owner%2frepo%3aq4%2egguf/cpu"),
        ("..", "cpu", False, "/cells/%2e%2e/cpu"),
        ("mine", "cpu", True, None),
    ],
)
def test_each_model_has_a_folder_of_stored_cells_on_each_device_of_this_machine(
    name: str,
    device: str,
    placed: bool,
    folder: str | None,
) -> None:
    entry = ModelEntry(name, ModelSettings(Path("m"), cache_dir=Path("/cells")), default=True, on_change=lambda _: None)
    replica = Replica(device, lambda: None, lambda: None, placed=placed)
    assert load_of(entry, replica, [], packed=True).cells == folder


async def test_an_invalid_file_does_not_reach_an_engine() -> None:
    def refuse(settings: ModelSettings) -> list[HeaderFacts]:
        raise InvalidModel(Flaw.OVERLAP)

    async with supervised(refuse) as world:
        await world.becomes("failed")
        assert (world.entry.reason, world.events, world.engines.empty()) == ("tensors overlap", ["failed"], True)


async def test_a_file_that_was_not_downloaded_is_logged_with_the_command_that_downloads_it(tmp_path: Path) -> None:
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
    (failed,) = [each for each in logs if each.get("run")]
    assert (failed["event"], failed["run"]) == ("model.failed", "carctl models pull hf:o/r/m.gguf")


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), OSError()])
async def test_a_check_that_fails_in_another_way_counts_as_a_death(error: Exception) -> None:
    def fail(settings: ModelSettings) -> list[HeaderFacts]:
        raise error

    async with supervised(fail) as world:
        await world.becomes("failed")
        assert world.entry.reason == NEVER_LOADED + f"did not start: {type(error).__name__}"


@pytest.mark.parametrize("fails", ["engine_lost", "replica_failed"])
async def test_a_defect_of_the_supervisor_is_reported_and_everything_is_answered(fails: str) -> None:
    def fail(*_: object) -> float:
        raise ValueError("a defect")

    with capture_logs() as logs:
        async with supervised() as world:
            engine = await world.next_engine()
            engine.receive(READY)
            world.clock = fail
            setattr(world, fails, fail)
            engine.die()
            while world.entry.reason != UNSUPERVISED:
                world.changed.clear()
                await world.changed.wait()
            await asyncio.sleep(0)
    assert world.entry.state == "failed"
    assert ("lost" in world.events) == (fails != "engine_lost")
    assert {entry["error"] for entry in logs if entry["event"] == "supervisor.failed"} >= {"ValueError"}
    assert ("failed" in world.events) == (fails != "replica_failed")


async def test_a_listener_that_fails_at_a_death_is_notified_of_it_again() -> None:
    async with supervised() as world:
        engine = await world.next_engine()
        engine.receive(READY)
        events, lost = world.engine_lost, []

        def fail_once(number: int, suspect: int | None) -> None:
            lost.append(number)
            if len(lost) == 1:
                raise ValueError("a defect")
            events(number, suspect)

        setattr(world, "engine_lost", fail_once)  # noqa: B010 - mypy takes it for a method
        engine.die()
        await world.next_engine()
    assert lost[:2] == [lost[0]] * 2


def strange(tmp_path: Path) -> list[HeaderFacts]:
    """Return the facts of a file with a tensor of an unknown type."""
    return [check(Gguf(tensors=[tensor("t", (8,), 77)]).write(tmp_path / "m.gguf"))]


async def test_an_engine_tries_an_unknown_tensor_type_and_its_refusal_names_the_type(tmp_path: Path) -> None:
    facts = strange(tmp_path)
    with capture_logs() as logs:
        async with supervised(lambda _: facts) as world:
            (await world.next_engine()).receive(LoadFailed("a fixed text"))
            assert world.entry.reason == "a fixed text; tensor type 77 is unknown to this version (1 of 1 tensors)"
    assert [each["warnings"] for each in logs if each["event"] == "model.unknown_parts"] == [list(facts[0].warnings)]


async def test_an_engine_that_dies_of_an_unknown_tensor_type_fails_its_model_with_how_it_died(tmp_path: Path) -> None:
    facts = strange(tmp_path)
    async with supervised(lambda _: facts) as world:
        for _ in range(2):
            (await world.next_engine()).die(-signal.SIGABRT)
        await world.becomes("failed")
        ending = (
            SAME_WAY + "was ended by signal 6 (Aborted); tensor type 77 is unknown to this version (1 of 1 tensors)"
        )
        assert world.entry.reason == ending


async def test_an_engine_that_serves_an_unknown_tensor_type_is_served(tmp_path: Path) -> None:
    facts = strange(tmp_path)
    async with supervised(lambda _: facts) as world:
        (await world.next_engine()).receive(READY)
        assert (world.entry.state, world.entry.reason) == ("ready", None)


async def test_an_engine_whose_file_was_overwritten_is_followed_by_another_at_once_and_counts_against_no_request() -> (
    None
):
    async with supervised() as world:
        first = await world.next_engine()
        first.receive(READY)
        world.supervisor.restart()
        assert first.killed
        (await world.next_engine()).receive(READY)
        await world.becomes("ready")
        assert world.suspects == [-1]
        world.supervisor.restart()
        await world.next_engine()
        assert world.suspects == [-1, -1]


async def test_two_files_that_are_overwritten_while_they_load_do_not_fail_the_model() -> None:
    async with supervised() as world:
        for _ in range(2):
            await world.next_engine()
            world.supervisor.restart()
        (await world.next_engine()).receive(READY)
        assert world.entry.state == "ready"


async def test_a_file_that_changes_is_loaded_once_it_stays_the_same(tmp_path: Path) -> None:
    sizes: list[int] = []

    def checked(settings: ModelSettings) -> list[HeaderFacts]:
        sizes.extend([settings.path.stat().st_size] if settings.path == file else [])
        return []

    file = tmp_path / "m"
    file.write_bytes(b"first")
    async with supervised(checked) as world:
        await world.next_engine()
        world.entry.settings = world.entry.configured = ModelSettings(file)
        world.supervisor.restart()
        for _ in range(10):
            with file.open("ab") as more:
                more.write(b"more")
            await asyncio.sleep(0.002)  # a writer that is faster than the file settles
        await world.next_engine()
        assert sizes == [file.stat().st_size]
