"""Several answers to one prompt: prepared once, leased one by one, one result, and one error for all of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

import pytest
from msgspec import Struct

from car_base.ipc.frames import (
    CallDelta,
    End,
    Extra,
    Fault,
    Forget,
    Halt,
    ImageSlot,
    Prepare,
    Prepared,
    Refused,
    RequestUpdate,
    Run,
    StepDone,
)
from car_daemon.models.entry import ModelPool
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, Responder
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.answer import Answer, FinishReason, Progress, Usage
from car_protocol.errors import RpcError
from car_protocol.infer import SEEDS, InferParams
from tests.daemon.links import Link, ready_of

ORIGIN = CallOrigin(Identity(0), 1, 1, "a", None, None)
PROMPT = bytes(4 * 30)
S = TypeVar("S", bound=Struct)


class Client:
    """A client: chunks with their index, and the response."""

    def __init__(self) -> None:
        self.sent: list[tuple[int | None, str]] = []
        self.progressed: list[Progress] = []
        self.results: list[Answer] = []
        self.errors: list[RpcError] = []

    @property
    def chunks(self) -> int:
        return len(self.sent)

    def chunk(self, text: str, extra: Extra | None, index: int | None = None) -> None:
        self.sent.append((index, text))

    def progress(self, params: Progress) -> None:
        self.progressed.append(params)

    def result(self, result: Answer) -> None:
        self.results.append(result)

    def error(self, error: RpcError) -> None:
        self.errors.append(error)

    @property
    def reasons(self) -> list[str]:
        return [error.reason for error in self.errors]

    @property
    def texts(self) -> list[str]:
        """The texts of the one result."""
        (result,) = self.results
        assert result.answers
        return [str(each.text) for each in result.answers]


class World:
    """The daemon's requests, with engines that a test acts for, and a clock that it sets."""

    def __init__(self, sequences: int = 4, bounds: QueueBounds | None = None) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(Gate(), bounds)
        self._pool = ModelPool(
            {"m": ModelSettings(Path("m"))}, "m", on_change=lambda _: None, on_progress=lambda _: None
        )
        self.inference = Inference(
            self.scheduler, self._pool, clock=lambda: self.now, arrived=lambda _: None, left=lambda _: None
        )
        self._sequences = sequences
        self.links: dict[int, Link] = {}
        self.start_engine(1)

    def start_engine(self, number: int) -> None:
        ready = ready_of(context_tokens=512, kv_bytes=1, sequences=self._sequences)
        self._pool.default.replicas[0].become("ready", ready=ready)
        self.links[number] = Link()
        self.inference.events.engine_ready(self._pool.default, number, self.links[number], ready)

    def infer(self, *, streams: bool = False, prepared: bool = True, **members: object) -> Client:
        """Submit a request for several answers, and prepare it."""
        client = Client()
        params = InferParams(prompt="a", **{"n": 3, "seed": 5, **members})  # type: ignore[arg-type]  # of many types
        self.inference.infer(params, ORIGIN, cast(Responder, client), size=10, streams=streams)
        if prepared:
            self.prepare()
        return client

    def sent(self, kind: type[S], engine: int = 1) -> list[S]:
        return [frame for frame in self.links[engine].sent if isinstance(frame, kind)]

    def prepare(self, engine: int = 1, images: Sequence[ImageSlot] = ()) -> None:
        """Answer the last prompt that an engine was sent."""
        key = self.sent(Prepare, engine)[-1].key
        self.inference.events.frame_received(engine, Prepared(key, PROMPT, 8, images=list(images)))

    def step(self, *keys: int, text: str = "x", engine: int = 1, extra: Extra | None = None) -> None:
        """Sample a token of some requests."""
        updates = [RequestUpdate(key, 0, f"{text}{key}", 1, 30, extra) for key in keys]
        self.inference.events.frame_received(engine, StepDone(1, updates))

    def end(
        self,
        key: int,
        reason: FinishReason | None = "stop",
        *,
        fault: Fault | None = None,
        cached: int = 29,
        engine: int = 1,
    ) -> None:
        """End a request; the first one computed the prompt."""
        end = End(reason, None, Usage(30, 0 if key == 1 else cached, 4), 10.0, 20.0, fault)
        self.inference.events.frame_received(engine, StepDone(1, [RequestUpdate(key, 0, "", 1, 30, end=end)]))

    def expire(self, now: float) -> None:
        """Let time pass, and end the requests past their limits."""
        self.now = now
        self.inference.runner.do(self.scheduler.expire(now))

    @property
    def running(self) -> list[int]:
        return [run.key for run in self.sent(Run)]

    @property
    def idle(self) -> bool:
        return self.inference.idle and not self.scheduler.requests


def test_a_prompt_is_prepared_once_and_its_answers_differ_by_their_seeds() -> None:
    world = World()
    world.infer()
    assert len(world.sent(Prepare)) == 1
    runs = world.sent(Run)
    assert [run.key for run in runs] == [run.prepared.key for run in runs] == [1, 2, 3]
    assert {run.prepared.tokens for run in runs} == {PROMPT}
    assert [run.options.seed for run in runs] == [5, 6, 7]


def test_seeds_go_on_from_0_after_the_highest() -> None:
    world = World()
    client = world.infer(seed=SEEDS - 1)
    assert [run.options.seed for run in world.sent(Run)] == [SEEDS - 1, 0, 1]
    for key in world.running:
        world.end(key)
    assert client.results[0].seed == SEEDS - 1


def test_a_seed_is_drawn_once() -> None:
    world = World()
    client = world.infer(seed=None)
    seeds = [run.options.seed for run in world.sent(Run)]
    assert seeds == [(seeds[0] + index) % SEEDS for index in range(3)]
    for key in world.running:
        world.end(key)
    assert client.results[0].seed == seeds[0]


def test_the_result_has_the_answers_in_their_order_whichever_ends_first() -> None:
    world = World()
    client = world.infer()
    world.step(1, 2, 3)
    for key, reason in ((3, "length"), (1, "stop"), (2, "stop")):
        assert client.results == []
        world.end(key, cast(FinishReason, reason))
    (result,) = client.results
    assert (client.texts, world.idle) == (["x1", "x2", "x3"], True)
    assert result.answers
    assert [each.finish_reason for each in result.answers] == ["stop", "stop", "length"]
    assert result.usage == Usage(30, 0, 12)
    assert (result.seed, result.model, result.text or None, result.finish_reason or None) == (5, "m", None, None)


def test_the_times_are_from_the_first_lease_to_the_last_token() -> None:
    world = World(sequences=1)
    client = world.infer(n=2)
    for key in (1, 2):
        world.now += 1
        world.step(key)
        world.now += 1
        world.end(key)
    timings = client.results[0].timings
    assert (timings.queue_ms, timings.ttft_ms, timings.total_ms) == (0, 1000, 4000)
    # The engine reports 20 ms from the first token of an answer to its last.
    assert timings.decode_ms == 2000 + 20


def test_chunks_have_the_index_of_their_answer_and_only_the_first_one_has_progress() -> None:
    world = World()
    client = world.infer(streams=True, progress=True)
    world.step(2)
    world.step(3, 1)
    for key in world.running:
        world.end(key)
    assert client.sent == [(1, "x2"), (2, "x3"), (0, "x1")]
    (result,) = client.results
    assert result.chunks == 3
    assert {(each.text or None) for each in result.answers or []} == {None}
    assert {params.phase for params in client.progressed} <= {"prefill"}
    assert len(client.progressed) == 1


def test_one_answer_is_as_without() -> None:
    world = World()
    client = world.infer(n=1, streams=True)
    world.step(1)
    world.end(1)
    (result,) = client.results
    assert (client.sent, result.finish_reason, result.answers or None) == ([(None, "x1")], "stop", None)
    assert (result.usage, result.seed) == (Usage(30, 0, 4), 5)


def test_more_answers_than_sequences_come_one_after_another() -> None:
    world = World(sequences=2)
    client = world.infer(n=5)
    assert world.running == [1, 2]
    world.end(2)
    assert world.running == [1, 2, 3]
    for key in (1, 3, 4, 5):
        world.end(key)
    assert (len(client.texts), len(world.sent(Prepare)), world.idle) == (5, 1, True)


def test_answers_that_use_no_cache_share_the_prompt_of_their_own_only() -> None:
    world = World()
    for _ in range(2):
        world.infer(cache_prompt=False)
    world.infer(cache_prompt=False, n=1)
    names = [run.namespace for run in world.sent(Run)]
    assert names == ["answers 1"] * 3 + ["answers 4"]
    for key in (1, 2, 3, 4):
        world.end(key)
    assert [run.namespace for run in world.sent(Run)][4:] == ["answers 4"] * 2 + [None]


@pytest.mark.parametrize("fault", ["decode", "constraint"])
def test_a_failure_of_one_answer_ends_all_with_one_error(fault: Fault) -> None:
    world = World()
    client = world.infer()
    world.step(1, 2, 3)
    world.end(2, None, fault=fault)
    assert (client.reasons, client.results) == (["invalid_params" if fault == "constraint" else "internal_error"], [])
    assert [halt.key for halt in world.sent(Halt)] == [1, 3]
    assert world.idle
    world.end(1, None)
    world.end(3, None)
    assert (len(client.errors), world.scheduler.gate.occupancy("m").leased) == (1, 0)


def test_a_prompt_that_is_refused_is_answered_once() -> None:
    world = World()
    client = world.infer(prepared=False)
    world.inference.events.frame_received(1, Refused(1, "context_exceeded", {"prompt_tokens": 9}))
    assert (client.reasons, client.errors[0].data["prompt_tokens"], world.idle) == (["context_exceeded"], 9, True)


@pytest.mark.parametrize("streams", [True, False])
def test_a_cancellation_ends_all_answers(streams: bool) -> None:
    world = World(sequences=2)
    client = world.infer(streams=streams)
    world.step(2)
    for key in (1, 2, 3):
        world.inference.cancel(key)
    assert (client.reasons, client.errors[0].data) == (["cancelled"], {"chunks": 1} if streams else {})
    assert [halt.key for halt in world.sent(Halt)] == [1, 2]
    assert world.idle
    assert world.scheduler.totals.cancelled == 3


def test_a_client_that_cancels_while_its_prompt_is_prepared_is_answered_once() -> None:
    world = World()
    client = world.infer(prepared=False)
    world.inference.cancel(1)
    assert (client.reasons, world.idle) == (["cancelled"], True)
    world.prepare()
    assert world.running == []


async def test_a_deadline_leaves_the_answers_that_have_begun_and_empty_ones() -> None:
    world = World(sequences=2)
    client = world.infer(timeout_ms=1000)
    world.step(1, 2)
    world.expire(1.5)
    assert [(halt.key, halt.deadline) for halt in world.sent(Halt)] == [(1, True), (2, True)]
    world.end(1, "deadline")
    world.end(2, "deadline")
    assert (client.texts, client.errors, world.idle) == (["x1", "x2", ""], [], True)
    (result,) = client.results
    assert {each.finish_reason for each in result.answers or []} == {"deadline"}
    assert result.usage.completion_tokens == 8


async def test_a_deadline_before_all_tokens_is_one_error() -> None:
    world = World(sequences=2)
    client = world.infer(timeout_ms=1000)
    world.expire(1.5)
    assert (client.reasons, client.results, world.idle) == (["deadline_exceeded"], [], True)


async def test_a_deadline_after_a_whole_answer_keeps_it() -> None:
    world = World(sequences=1)
    client = world.infer(n=2, timeout_ms=1000)
    world.step(1)
    world.end(1)
    world.expire(1.5)
    assert client.texts == ["x1", ""]


def test_a_newer_request_supersedes_all_answers_and_none_of_its_own() -> None:
    world = World()
    old = world.infer(supersede="k")
    new = world.infer(supersede="k")
    assert (old.reasons, old.errors[0].data) == (["cancelled"], {"superseded": True})
    for key in (1, 2, 3):
        world.end(key, None)
    for key in (4, 5, 6):
        world.end(key)
    assert (new.errors, len(new.results), world.idle) == ([], 1, True)


@pytest.mark.parametrize(("sequences", "runs"), [(2, []), (3, [1, 2, 3])])
def test_answers_that_do_not_wait_need_a_sequence_each(sequences: int, runs: list[int]) -> None:
    world = World(sequences)
    client = world.infer(wait=False, prepared=bool(runs))
    assert (world.running, client.reasons) == (runs, [] if runs else ["overloaded"])


def test_answers_that_do_not_wait_find_the_sequences_taken_once_they_are_prepared() -> None:
    world = World(sequences=3)
    client = world.infer(wait=False, prepared=False)
    first = world.sent(Prepare)[0].key
    world.infer(n=1)
    world.inference.events.frame_received(1, Prepared(first, PROMPT, 8))
    assert (client.reasons, world.running) == (["overloaded"], [4])


def test_answers_take_a_place_in_the_queue_each_and_their_prompt_counts_once() -> None:
    world = World(sequences=1)
    world.infer(n=4)
    assert len(world.scheduler.backlog) == 3
    assert "10 bytes" not in repr(world.scheduler.backlog)  # that of the one that runs


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
def test_answers_that_find_no_places_are_refused_together_and_drop_none_of_their_own(overflow: str) -> None:
    world = World(sequences=1, bounds=QueueBounds(limit=2, overflow=cast(object, overflow)))  # type: ignore[arg-type]
    client = world.infer(n=6, prepared=False)
    if not client.errors:
        world.prepare()
    assert (client.reasons, world.idle) == (["overloaded"], True)
    assert client.errors[0].data["why"] == "queue full"


def test_answers_that_a_full_queue_holds_back_come_in_their_turn() -> None:
    world = World(sequences=1, bounds=QueueBounds(limit=2))
    client = world.infer(n=6)
    for key in range(1, 7):
        assert world.running[-1] == key
        world.end(key)
    assert (len(client.texts), len(world.sent(Prepare)), world.idle) == (6, 1, True)


def test_a_drained_daemon_refuses_once() -> None:
    world = World()
    world.scheduler.drain()
    client = world.infer(prepared=False)
    assert (client.reasons, world.idle) == (["draining"], True)


def test_a_prompt_whose_engine_died_while_preparing_it_is_sent_to_the_next_once() -> None:
    world = World()
    client = world.infer(prepared=False)
    world.inference.events.engine_lost(1)
    world.start_engine(2)
    assert len(world.sent(Prepare, 2)) == 1
    world.prepare(2)
    assert [run.key for run in world.sent(Run, 2)] == [1, 2, 3]
    for key in (1, 2, 3):
        world.end(key, engine=2)
    assert len(client.results) == 1


def test_answers_whose_engine_died_run_again_and_repeat_nothing() -> None:
    world = World()
    client = world.infer()
    world.step(1, 2, 3, extra=Extra(calls=[CallDelta(0, id="a", name="f")]))
    world.end(2)
    world.inference.events.engine_lost(1)
    world.start_engine(2)
    assert len(world.sent(Prepare, 2)) == 1
    world.prepare(2)
    assert [run.key for run in world.sent(Run, 2)] == [1, 3]
    world.step(1, 3, text="y", engine=2)
    world.end(1, engine=2)
    world.end(3, engine=2)
    assert client.texts == ["y1", "x2", "y3"]
    assert [len(each.tool_calls or []) for each in client.results[0].answers or []] == [0, 1, 0]


def test_a_stream_that_lost_a_part_of_one_answer_is_lost_once() -> None:
    world = World()
    client = world.infer(streams=True)
    world.step(2)
    world.inference.events.engine_lost(1)
    assert (client.reasons, client.errors[0].started, world.idle) == (["engine_lost"], True, True)


IMAGES = [ImageSlot(0, 20, b"file")]


def on_two_engines() -> tuple[World, Client]:
    """Submit a request for 3 answers with an image to two engines of one sequence; the first one has encoded it."""
    world = World(sequences=1)
    world.start_engine(2)
    client = world.infer(prepared=False)
    world.prepare(1, IMAGES)
    return world, client


def test_the_image_of_several_answers_is_encoded_by_a_second_engine_before_it_leases_a_sequence() -> None:
    world, client = on_two_engines()
    assert world.running == [1]
    assert [each.key for each in world.sent(Prepare, 2)] == [2]
    assert (world.sent(Run, 2), world.scheduler.gate.available("m")) == ([], 1)
    world.prepare(2, IMAGES)
    assert [run.key for run in world.sent(Run, 2)] == [2]
    world.end(2, engine=2)
    world.end(1)
    third = 1 if world.running == [1, 3] else 2
    world.end(3, engine=third)
    assert (len(client.texts), world.idle) == (3, True)
    # Each engine has encoded it once, and the rows of both were used.
    assert [len(world.sent(Prepare, engine)) for engine in (1, 2)] == [1, 1]
    assert [world.sent(Forget, engine) for engine in (1, 2)] == [[], []]


def test_several_answers_that_are_cancelled_leave_no_image_with_either_engine() -> None:
    world, client = on_two_engines()
    world.inference.cancel(1)
    assert (client.reasons, world.idle) == (["cancelled"], True)
    assert Forget(2) in world.sent(Forget, 2)


def test_an_answer_that_moves_leaves_the_image_of_the_others_where_it_is() -> None:
    world = World(sequences=1)
    busy = world.infer(n=1)
    world.infer(prepared=False)
    world.prepare(1, IMAGES)
    world.start_engine(2)
    assert [each.key for each in world.sent(Prepare, 2)] == [2]
    world.prepare(2, IMAGES)
    assert [run.key for run in world.sent(Run, 2)] == [2]
    assert world.sent(Forget) == [Forget(2)]
    world.end(1)
    assert len(busy.results) == 1
    assert world.running == [1, 3]
    assert world.sent(Forget) == [Forget(2)]
