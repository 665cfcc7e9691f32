"""`daemon/drain` finishes, refuses at the timeout, answers who asked and ends; `daemon/cancel` ends one request."""

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.e2e.support import BIN, KNOWN, PATIENCE_S, Daemon, endless, greedy

pytestmark = pytest.mark.slow

Start = Callable[..., Daemon]


def test_a_drain_finishes_what_runs_and_waits_and_ends_the_daemon(start: Start) -> None:
    daemon = start("--capacity", "2")
    with daemon.connect() as client, daemon.connect() as admin:
        waiting = {client.send("infer", greedy(known)): known for known in KNOWN[:6]}
        client.result("inference/capacity")
        drained = admin.send("daemon/drain")
        assert admin.response(drained)["result"]["refused"] == 0
        assert {client.response(request)["result"]["text"] for request in waiting} == {
            k.answer for k in waiting.values()
        }
        with pytest.raises(EOFError):
            admin.receive()
    assert daemon.process.wait(PATIENCE_S) == 0
    assert not daemon.path.exists()


def test_what_is_not_done_at_the_timeout_of_a_drain_is_refused(start: Start) -> None:
    daemon = start("--capacity", "2")
    with daemon.connect() as client, daemon.connect() as admin:
        streams = [client.send("infer_stream", endless()) for _ in range(5)]
        client.first_chunk(streams[0])
        asked = time.monotonic()
        drained = admin.send("daemon/drain", {"timeout_ms": 500})
        while admin.result("daemon/status")["state"] != "draining":
            pass
        assert client.reason("infer", greedy(KNOWN[0])) == "draining"
        assert {client.response(request)["error"]["data"]["reason"] for request in streams} == {"draining"}
        assert time.monotonic() - asked >= 0.5
        assert admin.response(drained)["result"] == {"completed": 0, "refused": 5}
    assert daemon.process.wait(PATIENCE_S) == 0


def test_of_two_drains_the_shorter_one_counts_and_both_are_answered(start: Start) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client, daemon.connect() as admin:
        client.first_chunk(client.send("infer_stream", endless()))
        requests = [admin.send("daemon/drain", {"timeout_ms": limit}) for limit in (20_000, 100)]
        assert [admin.response(request)["result"] for request in requests] == [{"completed": 0, "refused": 1}] * 2
    assert daemon.process.wait(PATIENCE_S) == 0


def test_a_signal_after_a_drain_request_gives_what_runs_its_own_time(start: Start) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client:
        request = client.send("infer", endless(max_tokens=500))
        drained = client.send("daemon/drain")
        client.result("inference/capacity")
        daemon.process.send_signal(signal.SIGTERM)
        assert client.response(request)["result"]["usage"]["completion_tokens"] == 500
        assert client.response(drained)["result"] == {"completed": 1, "refused": 0}
    assert daemon.process.wait(PATIENCE_S) == 0


def test_carctl_drain_says_what_became_of_the_requests(start: Start) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client:
        client.first_chunk(client.send("infer_stream", endless()))
        done = subprocess.run(
            [BIN / "carctl", "--socket", daemon.path, "drain", "--timeout-ms", "100"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "0 completed, 1 refused\n"
    assert daemon.process.wait(PATIENCE_S) == 0


def test_a_request_of_another_connection_is_cancelled_by_the_names_of_the_status(start: Start) -> None:
    daemon = start("--capacity", "1")
    with daemon.connect() as client, daemon.connect() as other:
        request = client.send("infer_stream", endless())
        client.first_chunk(request)
        (sequence,) = other.result("daemon/status")["sequences"]
        assert other.result("daemon/cancel", {"connection": sequence["connection"], "id": sequence["id"]}) == {}
        assert client.response(request)["error"]["data"]["reason"] == "cancelled"
    assert daemon.stop() == 0
