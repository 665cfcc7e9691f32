"""Requests between the methods and the engines."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Struct
from msgspec.msgpack import Ext

from car_base.ipc.codec import encode_frame
from car_base.ipc.frames import (
    Detokenize,
    End,
    Fault,
    Forget,
    FromEngine,
    ImageSlot,
    Prepare,
    Prepared,
    PrepareDecision,
    PrepareTexts,
    Refused,
    RequestUpdate,
    Run,
    StepDone,
    Tokenize,
)
from car_daemon.models.entry import ModelPool
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import CallOrigin, Responder
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.answer import Usage
from car_protocol.decide import DecideParams, Predicate
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams
from car_protocol.params import decode_params
from car_protocol.text import DetokenizeParams, EmbedParams, RerankParams, TokenizeParams
from tests.daemon.captured_log import capture_logs
from tests.daemon.links import Link, ready_of
from tests.pace import HANG_S

READY = ready_of(context_tokens=512, kv_bytes=1)
ORIGIN = CallOrigin(Identity(0), 1, 1, "a", None, None)


class EncodingLink(Link):
    """An engine whose frames are encoded; where it is `broken` none holds a prompt to prepare."""

    def __init__(self, *, broken: bool) -> None:
        super().__init__()
        self._broken = broken

    def send(self, message: Struct) -> None:
        if self._broken and isinstance(message, Prepare):
            raise OverflowError("no frame holds it")
        assert encode_frame(message)
        super().send(message)


class Errors:
    """The errors that a client got."""

    chunks = 0

    def __init__(self) -> None:
        self.errors: list[RpcError] = []

    @property
    def reasons(self) -> list[str]:
        return [error.reason for error in self.errors]

    def error(self, error: RpcError) -> None:
        self.errors.append(error)


def serving(link: Link) -> tuple[Inference, Scheduler]:
    scheduler = Scheduler(Gate())
    pool = ModelPool({"m": ModelSettings(Path("m"))}, "m", on_change=lambda _: None, on_progress=lambda _: None)
    inference = Inference(scheduler, pool, clock=lambda: 0.0, arrived=lambda _: None, left=lambda _: None)
    pool.default.replicas[0].become("ready", ready=READY)
    inference.events.engine_ready(pool.default, 1, link, READY)
    return inference, scheduler


def test_a_request_that_no_frame_holds_is_answered_and_forgotten() -> None:
    errors = Errors()
    inference, scheduler = serving(EncodingLink(broken=True))
    inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, errors), size=1, streams=False)
    assert errors.reasons == ["internal_error"]
    assert (len(scheduler.requests), len(scheduler.backlog), inference.runner.answers) == (0, 0, {})


@pytest.mark.parametrize("number", [2**64, -(2**64), 2**64 - 1])
def test_schemas_with_integers_of_more_than_64_bits_reach_the_engine(number: int) -> None:
    link, errors = EncodingLink(broken=False), Errors()
    inference, _ = serving(link)
    params = decode_params(InferParams, b'{"prompt":"a","json_schema":{"minimum":%d}}' % number)
    inference.infer(params, ORIGIN, cast(Responder, errors), size=1, streams=False)
    assert (len(link.sent), errors.reasons) == (1, [])


def test_every_request_is_prepared_for_the_user_process_tenant_and_label_that_sent_it() -> None:
    link, responder = EncodingLink(broken=False), cast(Responder, Errors())
    inference, _ = serving(link)
    origin = CallOrigin(Identity(1234), 71, 1, "a", "chat", None, "editor")
    question = Predicate(instructions="b")
    inference.infer(InferParams(prompt="a"), origin, responder, size=1, streams=False)
    inference.decide(DecideParams(state="a", questions=[question]), origin, responder, size=1)
    inference.embed(EmbedParams(input=["a"]), origin, responder, size=1)
    inference.embed(RerankParams(query="a", documents=["b"]), origin, responder, size=1)
    inference.tokenization.tokenize("m", TokenizeParams(text="a"), origin, responder)
    inference.tokenization.detokenize("m", DetokenizeParams(tokens=[1]), origin, responder)
    kinds = [Prepare, PrepareDecision, PrepareTexts, PrepareTexts, Tokenize, Detokenize]
    assert [type(each) for each in link.sent] == kinds
    assert {(each.owner, *each.names) for each in link.sent} == {(1234, "71", "editor", "chat")}  # type: ignore[attr-defined]  # each kind has both


def test_the_log_says_what_an_engine_failed_with() -> None:
    link, errors = EncodingLink(broken=False), Errors()
    inference, _ = serving(link)
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, errors), size=1, streams=False)
    fault = "KeyError at car_engine.prompt:3"
    with capture_logs() as logs:
        inference.events.frame_received(1, Refused(key, "internal_error", {}, fault=fault))
    assert errors.reasons == ["internal_error"]
    said = {"event": "request.failed", "log_level": "error", "engine": 1}
    assert logs == [{**said, "fault": fault}]


@pytest.mark.parametrize(
    "frame",
    [
        lambda key: Refused(key, "invalid_params", {}),
        lambda key: StepDone(
            1, [RequestUpdate(key, 0, "forged", 1, 1, end=End("stop", None, Usage(1, 0, 0), 0.0, 0.0))]
        ),
        lambda key: Prepared(key, bytes(4), 1),
    ],
    ids=["refused", "step", "prepared"],
)
def test_an_engine_has_no_say_in_requests_of_another(frame: Callable[[int], FromEngine]) -> None:
    link, errors = EncodingLink(broken=False), Errors()
    inference, scheduler = serving(link)
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, errors), size=1, streams=False)
    before = repr(scheduler.requests[key])
    inference.events.frame_received(2, frame(key))
    assert (errors.reasons, repr(scheduler.requests[key])) == ([], before)


@pytest.mark.parametrize(
    ("reason", "data"),
    [("no reason", {}), ("limit", {"started": 1}), ("limit", {"reason": 1}), ("limit", {"a": Ext(1, b"")})],
)
def test_a_refusal_that_cannot_be_sent_is_an_internal_error(reason: str, data: dict[str, Any]) -> None:
    errors = Errors()
    inference, scheduler = serving(EncodingLink(broken=False))
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, errors), size=1, streams=False)
    inference.events.frame_received(1, Refused(key, reason, data))
    assert (errors.reasons, len(scheduler.requests)) == (["internal_error"], 0)


def test_a_cancellation_is_a_debug_event_without_the_clients_own_id_and_label() -> None:
    link, errors = EncodingLink(broken=False), Errors()
    inference, _ = serving(link)
    origin = CallOrigin(Identity(0), 1, 1, "canary-id", "canary-label", None)
    (key,) = inference.infer(InferParams(prompt="canary-text"), origin, cast(Responder, errors), size=1, streams=False)
    with capture_logs() as logs:
        inference.cancel(key)
        inference.cancel(key)
    assert logs == [{"event": "request.cancelled", "log_level": "debug", "key": key, "model": "m", "why": "cancelled"}]
    assert errors.reasons == ["cancelled"]


@pytest.mark.parametrize(("fault", "logged"), [("decode", ["decode"]), ("lease", ["lease"]), ("image", [])])
def test_the_log_says_what_went_wrong_under_a_request_but_not_what_is_wrong_with_it(
    fault: Fault, logged: list[str]
) -> None:
    errors = Errors()
    inference, _ = serving(EncodingLink(broken=False))
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, errors), size=1, streams=False)
    inference.events.frame_received(1, Prepared(key, bytes(4), 1))
    end = End(None, None, Usage(1, 0, 0), 0.0, 0.0, fault)
    with capture_logs() as logs:
        inference.events.frame_received(1, StepDone(1, [RequestUpdate(key, 0, "", 0, 0, end=end)]))
    assert errors.reasons == ["internal_error" if logged else "invalid_params"]
    assert [entry["fault"] for entry in logs if entry["event"] == "request.failed"] == logged


def test_the_log_says_in_which_place_an_engine_could_not_read_an_answer() -> None:
    errors = Errors()
    inference, _ = serving(EncodingLink(broken=False))
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, errors), size=1, streams=False)
    inference.events.frame_received(1, Prepared(key, bytes(4), 1))
    end = End(None, None, Usage(1, 0, 0), 0.0, 0.0, "reader", "RecursionError at m:1")
    with capture_logs() as logs:
        inference.events.frame_received(1, StepDone(1, [RequestUpdate(key, 0, "", 0, 0, end=end)]))
    assert errors.reasons == ["internal_error"]
    assert [entry["fault"] for entry in logs if entry["event"] == "request.failed"] == ["RecursionError at m:1"]


def test_an_engine_with_other_results_refuses_by_name_what_it_cannot_reproduce() -> None:
    errors = Errors()
    inference, _ = serving(EncodingLink(broken=False))
    params = InferParams(prompt="a", reproducible=True)
    (key,) = inference.infer(params, ORIGIN, cast(Responder, errors), size=1, streams=False)
    inference.events.frame_received(1, Prepared(key, bytes(4), 9))
    end = End(None, None, Usage(1, 0, 0), 0.0, 0.0, "unrepeatable")
    inference.events.frame_received(1, StepDone(1, [RequestUpdate(key, 0, "", 0, 0, end=end)]))
    assert errors.reasons == ["model_unavailable"]
    assert errors.errors[0].data["lacks"] == "reproducible"


def test_a_prompt_that_its_engine_has_no_room_for_is_refused_with_all_figures() -> None:
    errors = Errors()
    inference, _ = serving(EncodingLink(broken=False))
    params = InferParams(prompt="a", max_tokens=9)
    (key,) = inference.infer(params, ORIGIN, cast(Responder, errors), size=1, streams=False)
    inference.events.frame_received(1, Prepared(key, bytes(4 * 600), 9))
    end = End(None, None, Usage(600, 0, 0), 0.0, 0.0, "context")
    inference.events.frame_received(1, StepDone(1, [RequestUpdate(key, 0, "", 0, 0, end=end)]))
    assert errors.reasons == ["context_exceeded"]
    figures = {"prompt_tokens": 600, "max_tokens": 9, "context_tokens": READY.context_tokens}
    assert figures.items() <= errors.errors[0].data.items()


@pytest.mark.parametrize(
    ("open_ended", "max_tokens", "room"), [(False, 20_000, 20_000), (True, 20_000, 1024), (True, 7, 7)]
)
def test_an_answer_of_any_length_needs_little_room_and_a_stated_one_all_of_it(
    open_ended: bool, max_tokens: int, room: int
) -> None:
    inference, scheduler = serving(EncodingLink(broken=False))
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, Errors()), size=1, streams=False)
    inference.events.frame_received(1, Prepared(key, bytes(4), max_tokens, open_ended=open_ended))
    assert scheduler.requests[key].prompt.room == room


def two_replicas() -> tuple[Inference, EncodingLink, EncodingLink]:
    """Serve a model by two engines; the second has the longer context, and prepares."""
    short, long = EncodingLink(broken=False), EncodingLink(broken=False)
    settings = ModelSettings(Path("m"), replicas=2)
    pool = ModelPool({"m": settings}, "m", on_change=lambda _: None, on_progress=lambda _: None)
    inference = Inference(Scheduler(Gate()), pool, clock=lambda: 0.0, arrived=lambda _: None, left=lambda _: None)
    longer = ready_of(context_tokens=8192, kv_bytes=1)
    for number, (link, ready) in enumerate([(short, READY), (long, longer)], start=1):
        pool.default.replicas[number - 1].become("ready", ready=ready)
        inference.events.engine_ready(pool.default, number, link, ready)
    return inference, short, long


def test_replicas_of_different_contexts_each_run_what_fits_them() -> None:
    inference, short, long = two_replicas()
    keys: list[int] = []
    for prompt_tokens, max_tokens in ((5000, 3192), (100, 300)):
        params = InferParams(prompt="a")
        keys += inference.infer(params, ORIGIN, cast(Responder, Errors()), size=1, streams=False)
        inference.events.frame_received(2, Prepared(keys[-1], bytes(4 * prompt_tokens), max_tokens, open_ended=True))
    runs = [[each.prepared.key for each in link.sent if isinstance(each, Run)] for link in (short, long)]
    assert runs == [[keys[1]], [keys[0]]]
    assert not any(isinstance(each, Prepare) for each in short.sent)


@pytest.mark.parametrize("images", [[], [ImageSlot(0, 20, b"file")]])
def test_the_engine_that_has_a_sequence_for_a_request_encodes_its_images_first_and_the_other_drops_them(
    images: list[ImageSlot],
) -> None:
    inference, short, long = two_replicas()
    (busy,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, Errors()), size=1, streams=False)
    inference.events.frame_received(2, Prepared(busy, bytes(4 * 5000), 3192, open_ended=True))
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, Errors()), size=1, streams=False)
    inference.events.frame_received(2, Prepared(key, bytes(4 * 100), 300, images=images))
    assert [each.key for each in short.sent if isinstance(each, Prepare)] == ([key] if images else [])
    if images:
        assert not any(isinstance(each, Run) for each in short.sent)
        inference.events.frame_received(1, Prepared(key, bytes(4 * 100), 300, images=images))
    assert [each.key for each in short.sent if isinstance(each, Run)] == [key]
    assert [each for each in long.sent if isinstance(each, Forget)] == ([Forget(key)] if images else [])


def test_a_request_that_is_cancelled_while_a_second_engine_encodes_its_images_is_forgotten_by_it() -> None:
    inference, short, long = two_replicas()
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, Errors()), size=1, streams=False)
    images = [ImageSlot(0, 20, b"file")]
    inference.events.frame_received(2, Prepared(key, bytes(4 * 100), 300, images=images))
    assert [each.key for each in long.sent if isinstance(each, Run)] == [key]
    inference.events.engine_lost(2)
    assert [each.key for each in short.sent if isinstance(each, Prepare)] == [key]
    inference.cancel(key)
    assert [each for each in short.sent if isinstance(each, Forget)] == [Forget(key)]


class Unanswerable(Errors):
    """A client whose answer fails."""

    def error(self, error: RpcError) -> None:
        raise ValueError("a defect")


async def test_a_deadline_that_fails_leaves_those_after_it() -> None:
    pool = ModelPool({"m": ModelSettings(Path("m"))}, "m", on_change=lambda _: None, on_progress=lambda _: None)
    loop = asyncio.get_running_loop()
    failed, ended = asyncio.Event(), asyncio.Event()
    loop.set_exception_handler(lambda _loop, _context: failed.set())
    inference = Inference(Scheduler(Gate()), pool, clock=loop.time, arrived=lambda _: None, left=lambda _: ended.set())
    errors = Errors()
    replies = (Unanswerable(), errors)
    params = InferParams(prompt="a", timeout_ms=10)
    inference.infer(params, ORIGIN, cast(Responder, replies[0]), size=1, streams=False)
    await asyncio.wait_for(failed.wait(), HANG_S)
    inference.infer(params, ORIGIN, cast(Responder, replies[1]), size=1, streams=False)
    await asyncio.wait_for(ended.wait(), HANG_S)
    assert errors.reasons == ["deadline_exceeded"]


def test_a_prompt_that_the_end_of_a_step_reports_as_resident_runs_next() -> None:
    link = EncodingLink(broken=False)
    inference, scheduler = serving(link)
    keys = [
        key
        for _ in range(READY.sequences + 2)
        for key in inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, Errors()), size=1, streams=False)
    ]
    for key in keys:
        inference.events.frame_received(1, Prepared(key, bytes(4), 1))
    *_, second = waiting = list(scheduler.waiting.requests)
    assert waiting == keys[-2:]
    end = End(None, None, Usage(1, 0, 1), 0.0, 0.0)
    inference.events.frame_received(1, StepDone(1, [RequestUpdate(keys[0], 0, "", 1, 1, end=end)], [second]))
    assert list(scheduler.waiting.requests) == keys[-2:-1]


def test_a_refusal_of_a_request_that_an_engine_does_not_have_is_not_logged() -> None:
    inference, _ = serving(EncodingLink(broken=False))
    (key,) = inference.infer(InferParams(prompt="a"), ORIGIN, cast(Responder, Errors()), size=1, streams=False)
    with capture_logs() as logs:
        for engine, each in ((2, key), (1, key + 1), (1, 2**40)):
            inference.events.frame_received(engine, Refused(each, "internal_error", {}, fault="a line"))
        assert logs == []
        inference.events.frame_received(1, Refused(key, "internal_error", {}, fault="ValueError at m:1"))
    assert [entry["fault"] for entry in logs if entry["event"] == "request.failed"] == ["ValueError at m:1"]
