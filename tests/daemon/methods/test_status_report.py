"""Status objects: the counts of the queue, the rates and memory of engines, and the readings that are kept a moment."""

import os
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from car_base.host.memory import MemoryReading
from car_base.ipc.frames import DeviceMemory, DeviceUse, Prepared, RequestUpdate, StepDone
from car_daemon.connections.server import Server
from car_daemon.methods.model_report import CapacityReport, ModelReport
from car_daemon.methods.status_report import StatusReport, UserView
from car_daemon.models.entry import ModelPool
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, Responder
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import State
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams, Priority
from car_protocol.limits import Limits
from car_protocol.models import DeviceStatus
from car_protocol.status import EngineStatus, Status
from car_protocol.text import EmbedParams
from tests.daemon.links import Link, ready_of

QUEUE = 10
MANY = 1001
KV_BYTES = 4096
ORIGIN = CallOrigin(Identity(0), 1, 1, "a", None, None)


class Client:
    """Takes what it is answered."""

    chunks = 0

    def chunk(self, *_: object) -> None: ...

    def error(self, error: RpcError) -> None: ...


class Reported:
    """A daemon with one model of two sequences, at a time and with memory that a test sets."""

    def __init__(self, queue_limit: int = QUEUE) -> None:
        self.now = 100.0
        self.available = 800
        settings = {"m": ModelSettings(Path("m"))}
        self.pool = ModelPool(settings, "m", on_change=lambda _: None, on_progress=lambda _: None)
        self.scheduler = Scheduler(Gate(), QueueBounds(limit=queue_limit))
        self.inference = Inference(
            self.scheduler, self.pool, clock=lambda: self.now, arrived=lambda _: None, left=lambda _: None
        )
        self.report = StatusReport(
            self.inference,
            ModelReport(self.pool, self.scheduler.gate, set),
            CapacityReport(self.scheduler, self.pool, Limits(queue_limit=queue_limit)),
            loop_lag_ms=lambda: 1.5,
            socket="/run/card.sock",
            read_memory=lambda: MemoryReading(1000, self.available),
            clock=lambda: self.now,
        )
        self.replica = self.pool.default.replicas[0]

    def serve(self, memory_limits: tuple[int, int] | None = None) -> None:
        """Start the model's engine, as this process."""
        ready = ready_of(sequences=2, context_tokens=256, kv_bytes=KV_BYTES)
        ready = structs.replace(ready, memory_limits=memory_limits)
        self.replica.launched(1, os.getpid())
        self.replica.become("ready", ready=ready)
        self.inference.events.engine_ready(self.pool.default, 1, Link(), ready)

    def submit(self, priority: Priority = "latency_critical", origin: CallOrigin = ORIGIN) -> int:
        """Send a request; return its key."""
        params = InferParams(prompt="a", priority=priority)
        (key,) = self.inference.infer(params, origin, cast(Responder, Client()), size=1, streams=False)
        return key

    def embed(self) -> int:
        """Send a text to embed; return its key."""
        (key,) = self.inference.embed(EmbedParams(input=["a"]), ORIGIN, cast(Responder, Client()), size=1)
        return key

    def run(self, sequence: int, prompt_tokens: int, origin: CallOrigin = ORIGIN) -> int:
        """Have a request's prompt computed in a sequence; return its key."""
        key = self.submit(origin=origin)
        self.inference.events.frame_received(1, Prepared(key, bytes(4 * prompt_tokens), 8))
        update = RequestUpdate(key, sequence, "", 0, prompt_tokens)
        self.inference.events.frame_received(1, StepDone(1, [update]))
        return key

    @property
    def status(self) -> Status:
        """The status now."""
        return self.report.common(admin=True)

    @property
    def engine(self) -> EngineStatus:
        """The only engine's status."""
        [engine] = self.status.models[0].engines
        return engine


@pytest.fixture
def reported() -> Reported:
    """A daemon whose model is not loaded yet."""
    return Reported()


def test_waiting_requests_are_counted_by_class_with_the_oldest_ones_wait(reported: Reported) -> None:
    reported.submit()
    reported.now += 2.5
    reported.submit("throughput")
    reported.submit("throughput")
    queue = reported.status.queue
    assert (queue.latency_critical, queue.throughput, queue.oldest_wait_ms) == (1, 2, 2500.0)
    assert reported.status.totals.in_flight == 3


def waits(reported: Reported) -> list[tuple[str | None, str, int, float]]:
    """Return label, awaited thing, number and oldest wait of the groups of waiting requests."""
    return [(each.client, each.awaits, each.requests, each.oldest_ms) for each in reported.report.waiting()]


def test_requests_wait_for_an_engine_then_for_their_prompts_then_for_a_sequence(reported: Reported) -> None:
    keys = [reported.submit() for _ in range(3)]
    reported.now += 1.5
    assert waits(reported) == [(None, "engine", 3, 1500.0)]
    reported.serve()
    assert waits(reported) == [(None, "prompt", 3, 1500.0)]
    for key in keys:
        reported.inference.events.frame_received(1, Prepared(key, bytes(4 * 5), 8))
    # Two have the sequences.
    assert waits(reported) == [(None, "sequence", 1, 1500.0)]


def test_what_runs_is_listed_before_its_first_step_and_texts_too(reported: Reported) -> None:
    view = UserView(reported.report, server=lambda: cast(Server, []), admins=lambda: {0}, clock=lambda: reported.now)
    reported.serve()
    keys = [reported.submit(), reported.embed()]
    for key in keys:
        reported.inference.events.frame_received(1, Prepared(key, bytes(4 * 5), 8))
    assert waits(reported) == []
    listed = [(each.sequence, each.phase, each.prompt_tokens) for each in view.status(Identity(0)).sequences]
    assert listed == [(-1, "prefill", 5)] * 2
    reported.inference.events.frame_received(1, StepDone(1, [RequestUpdate(keys[0], 1, "", 0, 5)]))
    assert [each.sequence for each in view.status(Identity(0)).sequences] == [1, -1]


async def test_a_waiting_request_has_its_position_in_the_queue_of_all(reported: Reported) -> None:
    reported.serve()
    editor, agent = (structs.replace(ORIGIN, tenant=name) for name in ("editor", "agent"))
    origins = (ORIGIN, ORIGIN, agent, agent, editor)  # the first two have the sequences
    for key in [reported.submit(origin=origin) for origin in origins]:
        reported.inference.events.frame_received(1, Prepared(key, bytes(4 * 5), 8))
    positions = {each.tenant: (each.requests, each.position) for each in reported.report.waiting()}
    assert positions == {"agent": (2, 0), "editor": (1, 1)}


def test_requests_held_back_wait_for_a_place_and_each_label_has_an_entry_of_its_own() -> None:
    reported = Reported(queue_limit=2)
    reported.serve()
    editor, agent = (structs.replace(ORIGIN, client=name) for name in ("editor", "agent"))
    reported.submit(origin=editor)
    reported.now += 1
    for _ in range(4):
        reported.submit(origin=agent)
    assert waits(reported) == [("editor", "prompt", 1, 1000.0), ("agent", "prompt", 1, 0.0), ("agent", "place", 3, 0.0)]


@pytest.mark.parametrize(("paused", "awaits"), [(False, "turn"), (True, "reader")])
def test_a_parked_request_waits_for_its_turn_or_for_its_reader(reported: Reported, paused: bool, awaits: str) -> None:
    reported.serve()
    request = reported.scheduler.requests[reported.run(0, 5)]
    assert waits(reported) == []
    request.move(State.PARKED)
    request.parking.paused = paused
    assert waits(reported) == [(None, awaits, 1, 0.0)]


def test_a_user_is_sent_its_own_waiting_requests_and_an_administrator_all(reported: Reported) -> None:
    reported.submit(origin=structs.replace(ORIGIN, identity=Identity(1000)))
    reported.submit(origin=structs.replace(ORIGIN, identity=Identity(1001), tenant="editor"))
    view = UserView(reported.report, server=lambda: cast(Server, []), admins=lambda: {0}, clock=lambda: reported.now)
    assert [each.uid for each in view.status(Identity(0)).waiting] == [1000, 1001]
    (own,) = view.status(Identity(1001)).waiting
    assert (own.uid, own.caller) == (1001, "editor")


def test_a_delegate_is_sent_the_requests_of_the_people_behind_it_and_a_person_its_own(reported: Reported) -> None:
    anna, bob, other = Identity(1000, "anna", -1, "a"), Identity(1000, "bob", -2, "b"), Identity(1001, "anna", -3, "a")
    origins = [structs.replace(ORIGIN, identity=each) for each in (anna, other, bob)]
    reported.serve()
    for number, origin in enumerate(origins[:2]):
        reported.run(number, 5, origin)
    reported.submit(origin=origins[2])
    view = UserView(reported.report, server=lambda: cast(Server, []), admins=lambda: {0}, clock=lambda: reported.now)
    for viewer, running, waiting in (
        (Identity(1000), ["anna"], ["bob"]),
        (anna, ["anna"], []),
        (bob, [], ["bob"]),
        (Identity(1001), ["anna"], []),
        (Identity(1002), [], []),
    ):
        status = view.status(viewer)
        assert [each.person for each in status.sequences] == running
        assert [each.person for each in status.waiting] == waiting
        assert status.others is not None
        assert status.others.sequences == 2 - len(running)


def test_an_engine_reports_what_was_planned_and_taken_on_each_device(reported: Reported) -> None:
    reported.serve()
    assert (reported.engine.devices, reported.engine.host_experts) == ([], 0)
    ready = ready_of(sequences=2, context_tokens=256, kv_bytes=KV_BYTES, device="gpu")
    use = DeviceUse("CUDA0", slots=33, planned=70, taken=60, free=20, total=80)
    reported.replica.become("ready", ready=structs.replace(ready, devices=[use], host_experts=3))
    expected = DeviceStatus(name="CUDA0", layers=33, planned_bytes=70, taken_bytes=60, free_bytes=20, total_bytes=80)
    assert (reported.engine.devices, reported.engine.host_experts) == ([expected], 3)
    reported.replica.devices = [DeviceMemory("CUDA0", free=5, total=80)]
    assert reported.engine.devices == [structs.replace(expected, free_bytes=5)]


def test_the_queue_is_healthy_below_four_fifths_of_its_limit_in_each_class(reported: Reported) -> None:
    for _ in range(7):
        reported.submit()
    reported.submit("throughput")
    assert reported.status.queue.healthy
    reported.submit()
    assert not reported.status.queue.healthy


def test_an_empty_queue_has_no_oldest_request(reported: Reported) -> None:
    queue = reported.status.queue
    assert (queue.oldest_wait_ms, queue.healthy, reported.status.totals.received) == (0.0, True, 0)


def test_with_more_than_a_thousand_requests_the_counts_are_at_most_200_ms_old() -> None:
    reported = Reported(queue_limit=2 * MANY)
    for _ in range(MANY):
        reported.submit()
    assert reported.status.queue.latency_critical == MANY
    reported.submit()
    assert reported.status.queue.latency_critical == MANY
    reported.now += 0.2
    assert reported.status.queue.latency_critical == MANY + 1


def test_memory_is_read_again_after_200_ms(reported: Reported) -> None:
    assert reported.status.memory.available == 800
    reported.available = 100
    assert reported.status.memory.available == 800
    reported.now += 0.2
    assert reported.status.memory.available == 100


def test_an_engine_is_reported_from_its_launch_and_has_figures_once_it_is_up(reported: Reported) -> None:
    assert reported.status.models[0].engines == []
    reported.replica.launched(1, os.getpid())
    loading = reported.engine
    assert (loading.pid, loading.sequences, loading.kv_bytes_capacity) == (os.getpid(), 0, 0)
    assert loading.rss_bytes > 0
    reported.serve()
    assert (reported.engine.sequences, reported.engine.kv_bytes_capacity) == (2, KV_BYTES)


def test_an_engine_with_memory_limits_is_reported_with_its_use_beside_them(reported: Reported) -> None:
    reported.serve(memory_limits=(1 << 40, 1 << 41))
    memory = reported.engine.memory
    assert memory is not None
    assert (memory.private_limit_bytes, memory.virtual_limit_bytes) == (1 << 40, 1 << 41)
    assert 0 < memory.private_bytes <= memory.virtual_bytes


def test_an_engine_without_memory_limits_is_reported_without_memory(reported: Reported) -> None:
    reported.serve()
    assert reported.engine.memory is None


def test_rates_are_those_between_the_last_two_heartbeats(reported: Reported) -> None:
    reported.serve()
    counters = reported.replica.counters
    counters.update(10.0, {"decode_tokens": 100, "decode_steps": 50, "prefill_tokens": 0, "decode_s": 1.0})
    assert (reported.engine.decode_tokens_per_s, reported.engine.batch_size) == (0.0, 0.0)
    counters.update(12.0, {"decode_tokens": 160, "decode_steps": 70, "prefill_tokens": 500, "decode_s": 1.5})
    engine = reported.engine
    assert (engine.decode_tokens_per_s, engine.prefill_tokens_per_s, engine.batch_size) == (30.0, 250.0, 3.0)
    assert (engine.utilisation, engine.seconds["decode"]) == (0.25, 1.5)


def test_the_cells_of_running_requests_count_as_their_part_of_the_kv_bytes(reported: Reported) -> None:
    reported.serve()
    assert reported.engine.kv_bytes_used == 0
    reported.run(sequence=0, prompt_tokens=128)
    assert reported.engine.kv_bytes_used == KV_BYTES * 128 // (2 * 256)


def test_running_requests_are_in_order_of_arrival_and_waiting_ones_are_left_out(reported: Reported) -> None:
    reported.serve()
    first, second = reported.run(sequence=1, prompt_tokens=4), reported.run(sequence=0, prompt_tokens=4)
    reported.submit()
    assert [answer.request.key for answer in reported.report.running()] == [first, second]


def test_a_draining_daemon_says_so_with_its_age(reported: Reported) -> None:
    assert reported.status.state == "serving"
    reported.now += 7.25
    reported.scheduler.draining = True
    status = reported.status
    assert (status.state, status.uptime_s, status.loop_lag_ms, status.socket) == (
        "draining", 7.25, 1.5, "/run/card.sock",
    )  # fmt: skip
