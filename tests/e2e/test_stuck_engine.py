"""The engine hangs: deadlines hold, it is killed, and another one goes on."""

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from car_daemon.config.settings import Flags, load_config
from car_daemon.engines.life import HealthLimits
from car_daemon.engines.supervisor import SupervisionLimits
from car_daemon.lifecycle.assembly import Seams, Sockets
from car_daemon.lifecycle.daemon import Daemon as DaemonHere
from car_daemon.sockets.own_socket import OwnSocket
from tests.e2e.support import KNOWN, PATIENCE_S, RawClient, endless, greedy, is_gone, running

pytestmark = pytest.mark.slow


async def test_deadlines_hold_while_the_engine_is_stopped(folder: Path) -> None:
    config = load_config(Flags(socket=str(folder / "card.sock"), capacity=3), {"XDG_CACHE_HOME": str(folder)})
    # The engine is not replaced before the deadlines, however late they are on a busy machine.
    limits = SupervisionLimits(health=HealthLimits(silence_s=10 * PATIENCE_S))
    own_socket = OwnSocket(config.socket)
    daemon = DaemonHere(config, Sockets(own_socket), Seams(limits=limits))
    running = asyncio.create_task(daemon.run())
    await asyncio.to_thread(expire_beside_a_stopped_engine, config.socket)
    daemon.stop()
    await running
    own_socket.close()


def expire_beside_a_stopped_engine(path: Path) -> None:
    """Check that requests end at their deadlines, whether they run or wait."""
    with RawClient(path) as client:
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        pid = client.result("daemon/status")["models"][0]["engines"][0]["pid"]
        stream = client.send("infer_stream", endless(timeout_ms=5000))
        client.first_chunk(stream)
        single = client.send("infer", endless(timeout_ms=5000, return_tokens=True, max_tokens=3500))
        while [each["phase"] for each in client.result("daemon/status")["sequences"]] != ["decode"] * 2:
            pass
        psutil.Process(pid).suspend()
        late = client.send("infer", greedy(KNOWN[1], timeout_ms=500))
        assert client.response(late)["error"]["data"]["reason"] == "deadline_exceeded"
        answers = [client.response(request)["result"] for request in (stream, single)]
        assert [answer["finish_reason"] for answer in answers] == ["deadline", "deadline"]
        assert answers[1]["usage"]["completion_tokens"] == len(answers[1]["tokens"]) > 0
        # Their sequences are not free before the engine has left them.
        assert client.result("inference/capacity")["in_use"] == 2


def test_an_engine_that_is_stopped_is_replaced_and_its_single_answers_run_again(folder: Path) -> None:
    with running(folder, "--capacity", "3") as daemon, daemon.connect() as client:
        engine = daemon.ready().engine()
        lasting = client.send("infer", endless(max_tokens=1000))
        while not client.result("daemon/status")["sequences"]:
            pass
        suspended = time.monotonic()
        engine.suspend()
        engine.wait(PATIENCE_S)
        # Its last heartbeat may lie an interval before the signal, and be late.
        assert time.monotonic() - suspended > 5 - 2
        assert client.response(lasting)["result"]["usage"]["completion_tokens"] == 1000
        assert is_gone(engine)
        assert client.result("daemon/status")["models"][0]["engines"][0]["restarts"] == 1
    assert "engine.stuck" in daemon.log.read_text()
