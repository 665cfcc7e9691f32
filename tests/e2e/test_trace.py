"""The trace that a client sends along, in the daemon's log."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from car_client import AsyncClient, Client, DeadlineExceeded
from tests.e2e.support import BIN, Daemon, Json, RawClient, endless

TRACES = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331b7ad6b7169203331"]
PARENT = "00f067aa0ba902b7"


def traceparent(trace: str) -> str:
    return f"00-{trace}-{PARENT}-01"


@pytest.fixture
def full(start: Callable[..., Daemon]) -> Daemon:
    """A daemon of one sequence, with a log to read."""
    daemon: Daemon = start("--capacity", "1", "--log-format", "json").ready()
    return daemon


def hold(client: RawClient) -> int:
    """Take the one sequence; return the request's id."""
    request: int = client.send("infer_stream", endless())
    client.first_chunk(request)
    return request


def let_go_once_somebody_waited(client: RawClient, request: int) -> None:
    """Give the sequence back when a wait is long enough to be logged."""
    while client.result("daemon/status")["queue"]["oldest_wait_ms"] < 110:
        pass
    client.notify("$/cancelRequest", {"id": request})
    client.response(request)


def logged(daemon: Daemon, event: str) -> list[Json]:
    """Return the events of a daemon that has stopped."""
    assert daemon.stop() == 0
    events = map(json.loads, daemon.log.read_text().splitlines())
    return [each for each in events if each["event"] == event]


def ids(event: Json) -> tuple[Any, Any]:
    return event.get("trace_id"), event.get("parent_id")


async def test_requests_that_time_out_are_logged_with_the_trace_that_python_gave(full: Daemon) -> None:
    with full.connect() as holder, Client(full.path) as blocking:
        hold(holder)
        async with AsyncClient(full.path) as client:
            with pytest.raises(DeadlineExceeded):
                await client.infer("Hi", queue_timeout_ms=10, traceparent=traceparent(TRACES[0]))
            with pytest.raises(DeadlineExceeded):
                await client.infer("Hi", queue_timeout_ms=10, traceparent="00-not-valid-01")
        with pytest.raises(DeadlineExceeded):
            next(iter(blocking.infer_stream("Hi", queue_timeout_ms=10, traceparent=traceparent(TRACES[1]))))
    assert [ids(event) for event in logged(full, "request.timed_out")] == [
        (TRACES[0], PARENT),
        (None, None),
        (TRACES[1], PARENT),
    ]


def test_requests_that_waited_are_logged_with_their_own_trace(full: Daemon) -> None:
    with full.connect() as holder, full.connect() as client:
        held = hold(holder)
        asked = [
            client.send("infer", {"prompt": "Hi", "max_tokens": 1, "_meta": {"traceparent": traceparent(TRACES[0])}}),
            client.send("embed", {"input": ["Hi"], "_meta": {"traceparent": traceparent(TRACES[1])}}),
            client.send("infer", {"prompt": "Hi", "max_tokens": 1}),
        ]
        let_go_once_somebody_waited(holder, held)
        for request in asked:
            assert "result" in client.response(request)
    found = {ids(event) for event in logged(full, "request.waited")}
    traced = {(TRACES[0], PARENT), (TRACES[1], PARENT)}
    assert traced <= found <= traced | {(None, None)}


@pytest.mark.parametrize("form", [(), ("--json",), ("--no-stream",)])
def test_carctl_sends_a_trace_along(full: Daemon, form: tuple[str, ...]) -> None:
    with full.connect() as holder:
        held = hold(holder)
        command = ["infer", *form, "--param", f"traceparent={traceparent(TRACES[2])}", "Hi"]
        carctl = subprocess.Popen([BIN / "carctl", "--socket", full.path, *command], stdout=subprocess.PIPE)
        let_go_once_somebody_waited(holder, held)
        answer, _ = carctl.communicate()
        assert carctl.returncode == 0
        assert answer
    # What waited for the model itself has no trace.
    assert ids(logged(full, "request.waited")[-1]) == (TRACES[2], PARENT)
