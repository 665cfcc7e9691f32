"""The engine hangs: deadlines hold, it is killed, and another one goes on."""

import time
from pathlib import Path

import pytest

from tests.e2e.support import KNOWN, PATIENCE_S, endless, greedy, is_gone, running

pytestmark = pytest.mark.slow


def test_deadlines_hold_while_the_engine_is_stopped_and_it_is_replaced(folder: Path) -> None:
    with running(folder, "--capacity", "3") as daemon, daemon.connect() as client:
        engine = daemon.ready().engine()
        stream = client.send("infer_stream", endless(timeout_ms=2000))
        client.first_chunk(stream)
        sent = time.monotonic()
        single = client.send("infer", endless(timeout_ms=2000, return_tokens=True, max_tokens=3500))
        lasting = client.send("infer", greedy(KNOWN[0]))
        assert client.response(lasting)["result"]["text"] == KNOWN[0].answer
        lasting = client.send("infer", endless(max_tokens=1000))
        while len(client.result("daemon/status")["sequences"]) < 3:
            pass
        engine.suspend()
        suspended = time.monotonic()
        late = client.send("infer", greedy(KNOWN[1], timeout_ms=500))
        late_sent = time.monotonic()
        assert client.response(late)["error"]["data"]["reason"] == "deadline_exceeded"
        assert time.monotonic() - late_sent < 2
        answers = [client.response(request)["result"] for request in (stream, single)]
        assert time.monotonic() - sent < 2 + 1 + 1
        assert [answer["finish_reason"] for answer in answers] == ["deadline", "deadline"]
        assert answers[1]["usage"]["completion_tokens"] == len(answers[1]["tokens"]) > 0
        assert client.result("inference/capacity")["in_use"] == 3
        engine.wait(PATIENCE_S)
        # Its last heartbeat may lie one interval before the signal.
        assert 5 - 1 < time.monotonic() - suspended < 15
        assert client.response(lasting)["result"]["usage"]["completion_tokens"] == 1000
        assert is_gone(engine)
        assert client.result("daemon/status")["models"][0]["engines"][0]["restarts"] == 1
    assert "engine.stuck" in daemon.log.read_text()
