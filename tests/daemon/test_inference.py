"""What becomes of requests between the handlers and the engines."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Struct
from structlog.testing import capture_logs

from car_daemon.deadlines import Deadlines
from car_daemon.engine.codec import encode_frame
from car_daemon.engine.frames import End, Fault, Prepare, Prepared, Refused, Row, StepDone
from car_daemon.inference import Inference
from car_daemon.models.entry import ModelSettings
from car_daemon.models.pool import ModelPool
from car_daemon.pending import Owner, Reply
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.answer import Usage
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams
from car_protocol.params import decode_params
from tests.daemon.links import Link, ready_of

READY = ready_of(context_tokens=512, kv_bytes=1)
OWNER = Owner(0, 1, 1, "a", None, None)


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
        self.reasons: list[str] = []

    def error(self, error: RpcError) -> None:
        self.reasons.append(error.reason)


def serving(link: Link) -> tuple[Inference, Scheduler]:
    scheduler = Scheduler(Gate())
    pool = ModelPool({"m": ModelSettings(Path("m"))}, "m", on_change=lambda _: None, on_progress=lambda _: None)
    inference = Inference(scheduler, pool, clock=lambda: 0.0, arrived=lambda _: None, left=lambda _: None)
    pool.default.replicas[0].become("ready", ready=READY)
    inference.engine_ready(pool.default, 1, link, READY)
    return inference, scheduler


def test_a_request_that_no_frame_holds_is_answered_and_forgotten() -> None:
    errors = Errors()
    inference, scheduler = serving(EncodingLink(broken=True))
    inference.infer(InferParams(prompt="a"), OWNER, cast(Reply, errors), size=1, streams=False)
    assert errors.reasons == ["internal_error"]
    assert (len(scheduler.requests), len(scheduler.backlog), inference.answers) == (0, 0, {})


@pytest.mark.parametrize("number", [2**64, -(2**64), 2**64 - 1])
def test_schemas_with_integers_of_more_than_64_bits_reach_the_engine(number: int) -> None:
    link, errors = EncodingLink(broken=False), Errors()
    inference, _ = serving(link)
    params = decode_params(InferParams, b'{"prompt":"a","json_schema":{"minimum":%d}}' % number)
    inference.infer(params, OWNER, cast(Reply, errors), size=1, streams=False)
    assert (len(link.sent), errors.reasons) == (1, [])


def test_the_log_says_what_an_engine_failed_with() -> None:
    link, errors = EncodingLink(broken=False), Errors()
    inference, _ = serving(link)
    key = inference.infer(InferParams(prompt="a"), OWNER, cast(Reply, errors), size=1, streams=False)
    with capture_logs() as logs:
        inference.engine_said(1, Refused(key, "internal_error", {}, fault="KeyError at car_daemon.engine.form:3"))
    assert errors.reasons == ["internal_error"]
    said = {"event": "request.failed", "log_level": "error", "engine": 1}
    assert logs == [{**said, "fault": "KeyError at car_daemon.engine.form:3"}]


@pytest.mark.parametrize(("fault", "logged"), [("decode", ["decode"]), ("lease", ["lease"]), ("image", [])])
def test_the_log_says_what_went_wrong_under_a_request_but_not_what_is_wrong_with_it(
    fault: Fault, logged: list[str]
) -> None:
    errors = Errors()
    inference, _ = serving(EncodingLink(broken=False))
    key = inference.infer(InferParams(prompt="a"), OWNER, cast(Reply, errors), size=1, streams=False)
    inference.engine_said(1, Prepared(key, bytes(4), 1))
    end = End(None, None, Usage(1, 0, 0), 0.0, 0.0, fault)
    with capture_logs() as logs:
        inference.engine_said(1, StepDone(1, [Row(key, 0, "", 0, 0, end=end)]))
    assert errors.reasons == ["internal_error" if logged else "invalid_params"]
    assert [entry["fault"] for entry in logs if entry["event"] == "request.failed"] == logged


async def test_a_deadline_that_fails_again_and_again_leaves_the_loop_to_others() -> None:
    loop = asyncio.get_running_loop()
    failed: list[float] = []
    thrice = asyncio.Event()

    def hear(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
        failed.append(loop.time())
        if len(failed) == 3:
            thrice.set()

    def fail() -> None:
        raise ValueError("a defect")

    loop.set_exception_handler(hear)
    Deadlines(lambda: 0.0, fail, loop.time).add(0.0)
    await asyncio.wait_for(thrice.wait(), 10)
    assert failed[2] - failed[0] > 0.15


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
    inference.infer(params, OWNER, cast(Reply, replies[0]), size=1, streams=False)
    await asyncio.wait_for(failed.wait(), 10)
    inference.infer(params, OWNER, cast(Reply, replies[1]), size=1, streams=False)
    await asyncio.wait_for(ended.wait(), 10)
    assert errors.reasons == ["deadline_exceeded"]
