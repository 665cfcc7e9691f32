"""The trace that a client sends along, in the daemon's log."""

import asyncio
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from car_client import AsyncClient, Client, DeadlineExceeded
from tests.e2e.support import BIN, Daemon, Json, RawClient, endless, running

TRACES = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"]
# Sent by `carctl infer` with these options.
# A program without a sequence takes a turn from another's request of its class, so these are of the lower class.
FORMS: dict[str, list[str]] = {
    "b7ad6b7169203331b7ad6b7169203331": [],
    "c7ad6b7169203331b7ad6b7169203331": ["--json"],
    "d7ad6b7169203331b7ad6b7169203331": ["--no-stream"],
}
PARENT = "00f067aa0ba902b7"


def traceparent(trace: str) -> str:
    return f"00-{trace}-{PARENT}-01"


def hold(client: RawClient) -> int:
    """Take the one sequence; return the request's id."""
    request: int = client.send("infer_stream", endless())
    client.first_chunk(request)
    return request


def let_go_once_the_last_waited(client: RawClient, request: int) -> None:
    """Give the sequence back when the wait of the last request is long enough to be logged."""
    first = client.result("daemon/status")["queue"]["oldest_wait_ms"]
    while client.result("daemon/status")["queue"]["oldest_wait_ms"] < first + 110:
        pass
    client.notify("$/cancelRequest", {"id": request})
    client.response(request)


async def time_out(daemon: Daemon) -> None:
    """Have requests of both Python clients time out while another has the one sequence."""
    with daemon.connect() as holder, Client(daemon.path) as blocking:
        hold(holder)
        async with AsyncClient(daemon.path) as client:
            with pytest.raises(DeadlineExceeded):
                await client.infer("Hi", queue_timeout_ms=10, traceparent=traceparent(TRACES[0]))
            with pytest.raises(DeadlineExceeded):
                await client.infer("Hi", queue_timeout_ms=10, traceparent="00-not-valid-01")
        with pytest.raises(DeadlineExceeded):
            next(iter(blocking.infer_stream("Hi", queue_timeout_ms=10, traceparent=traceparent(TRACES[1]))))


def wait(daemon: Daemon) -> None:
    """Have requests wait that the protocol and `carctl` sent."""
    with daemon.connect() as holder, daemon.connect() as client:
        held = hold(holder)
        asked = [
            client.send("infer", {"prompt": "Hi", "max_tokens": 1, "_meta": {"traceparent": traceparent(TRACES[0])}}),
            client.send("embed", {"input": ["Hi"], "_meta": {"traceparent": traceparent(TRACES[1])}}),
            client.send("infer", {"prompt": "Hi", "max_tokens": 1}),
        ]
        commands = [
            subprocess.Popen(
                [
                    BIN / "carctl",
                    "--socket",
                    daemon.path,
                    "infer",
                    *form,
                    "--param=priority=throughput",
                    f"--param=traceparent={sent}",
                    "Hi",
                ],
                stdout=subprocess.PIPE,
            )
            for form, sent in ((form, traceparent(trace)) for trace, form in FORMS.items())
        ]
        while holder.result("inference/capacity")["queued"] < len(asked) + len(commands):
            pass
        let_go_once_the_last_waited(holder, held)
        for request in asked:
            assert "result" in client.response(request)
        for command in commands:
            answer, _ = command.communicate()
            assert (command.returncode, answer != b"") == (0, True)


@pytest.fixture(scope="module")
def events() -> list[Json]:
    """The log of a daemon of one sequence, at which requests with traces timed out and waited."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        with running(Path(name), "--capacity", "1", "--log-format", "json") as daemon:
            asyncio.run(time_out(daemon.ready()))
            daemon.wait_until_idle()
            wait(daemon)
        return [json.loads(line) for line in daemon.log.read_text().splitlines()]


def traces(events: list[Json], event: str) -> list[tuple[Any, Any]]:
    """Return the trace and parent of each event of a kind."""
    return [(each.get("trace_id"), each.get("parent_id")) for each in events if each["event"] == event]


def test_requests_that_time_out_are_logged_with_the_trace_that_python_gave(events: list[Json]) -> None:
    assert traces(events, "request.timed_out") == [(TRACES[0], PARENT), (None, None), (TRACES[1], PARENT)]


def test_requests_that_waited_are_logged_with_their_own_trace(events: list[Json]) -> None:
    sent = {(trace, PARENT) for trace in (*TRACES, *FORMS)}
    found = set(traces(events, "request.waited"))
    assert sent <= found <= sent | {(None, None)}
