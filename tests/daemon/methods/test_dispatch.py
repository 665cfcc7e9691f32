"""Calls to handlers: what goes wrong in one is answered and logged, without anything of the request."""

import asyncio
from typing import Any

from car_daemon.methods.dispatch import Dispatch, Handler
from car_daemon.people.people import People
from car_protocol.methods import METHODS
from tests.daemon.captured_log import capture_logs
from tests.daemon.connections.pairs import connections
from tests.pace import HANG_S

SECRET = "canary-5f1d"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def failing(_connection: Any, _call: Any, params: Any) -> None:
    raise ValueError(params.text)


def dispatch() -> Dispatch:
    handlers: dict[str, Handler] = dict.fromkeys(METHODS, failing)
    return Dispatch(handlers, People(), lambda _: None, lambda *_: 0)


async def failed(params: bytes) -> tuple[str, dict[str, Any]]:
    """Send a request that meets a defect; return the reason that it is answered with, and what is logged."""
    with capture_logs() as logs:
        async with connections(handler=dispatch()) as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b'{"jsonrpc":"2.0","id":1,"method":"tokenize","params":' + params + b"}\n")
            answer = await pair.receive()
    (event,) = logs
    return answer["error"]["data"]["reason"], dict(event)


async def test_a_defect_is_logged_by_its_place_and_with_the_request_s_trace() -> None:
    meta = f'"_meta":{{"traceparent":"00-{TRACE}-{PARENT}-01","other":"{SECRET}"}}'
    reason, event = await failed(f'{{"text":"{SECRET}",{meta}}}'.encode())
    assert reason == "internal_error"
    assert (event["event"], event["method"], event["error"]) == ("call.failed", "tokenize", "ValueError")
    assert event["place"].startswith("tests.daemon.methods.test_dispatch:")
    assert (event["trace_id"], event["parent_id"]) == (TRACE, PARENT)
    assert SECRET not in str(event)


async def test_without_a_trace_there_are_no_keys_for_it() -> None:
    _, event = await failed(f'{{"text":"{SECRET}","_meta":{{"traceparent":"{SECRET}"}}}}'.encode())
    assert not {"trace_id", "parent_id"} & event.keys()
    assert SECRET not in str(event)


async def test_a_result_that_cannot_be_encoded_is_answered_with_an_error() -> None:
    handlers: dict[str, Handler] = dict.fromkeys(METHODS, lambda *_: {"text": "\udcff"})
    async with connections(handler=Dispatch(handlers, People(), lambda _: None, lambda *_: 0)) as all_of_them:
        pair = await all_of_them.connect()
        pair.writer.write(b'{"jsonrpc":"2.0","id":1,"method":"models/list"}\n')
        answer = await asyncio.wait_for(pair.receive(), HANG_S)
        assert (answer["id"], answer["error"]["data"]["reason"]) == (1, "internal_error")
        assert len(pair.connection.requests) == 0
