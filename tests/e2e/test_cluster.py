"""Engines on two hosts, placed by a placer that stands in for Ray's: the daemon, gate and client are the real ones."""

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from car_base.guide import PATH
from tests.e2e.placed import big, placed, until_up
from tests.e2e.support import KNOWN, LONG, PATIENCE_S, ROOT, Daemon, endless, greedy, is_gone

pytest.importorskip("cryptography", reason="the pairs of seats need the package cryptography: card-daemon[cluster]")
pytestmark = pytest.mark.slow
PROGRAM = (sys.executable, str(ROOT / "tests" / "local_cluster.py"))
STREAMS = 8


@contextmanager
def clustered(folder: Path, *, up: int = 2) -> Iterator[Daemon]:
    """Run a daemon with two placed engines of four sequences; `up` of them are up at first."""
    path = Path(shutil.copy(PATH, folder / "big.gguf"))
    nodes = str(folder / "nodes")
    with placed(
        folder, 'address = "local:1"', "threads = 1", up=up, path=path, program=PROGRAM, RAY_TEST_NODES=nodes
    ) as daemon:
        yield daemon


def helpers(daemon: Daemon, word: str) -> list[psutil.Process]:
    """Return the processes of seats, or the placer, that the daemon's placer started; `word` is in their command."""
    script = PROGRAM[1]
    mine = psutil.Process().uids().real
    found = []
    for process in psutil.process_iter(["cmdline", "uids", "environ"]):
        command, environment = process.info["cmdline"] or [], process.info["environ"] or {}
        is_ours = environment.get("RAY_TEST_NODES") == str(daemon.path.parent / "nodes")
        if process.info["uids"] and process.info["uids"].real == mine and script in command and is_ours:
            arguments = command[command.index(script) + 1 :]
            found += [process] if arguments[0] == word or (word == "placer" and arguments[0].isdigit()) else []
    return found


def seat_on(daemon: Daemon, host: str) -> psutil.Process:
    """Return the process of the one seat on a host."""
    (seat,) = [each for each in helpers(daemon, "seat") if host in each.cmdline()]
    return seat


def test_two_hosts_are_one_capacity_and_the_answers_are_the_taught_ones(folder: Path) -> None:
    with clustered(folder) as daemon, daemon.connect() as client:
        capacity = client.result("inference/capacity")
        assert (capacity["capacity"], capacity["state"]) == (8, "ready")
        model = big(client)
        assert (model["place"], model["replicas"], model["up"]) == ("ray", 2, 2)
        assert sorted(engine["host"] for engine in model["engines"]) == ["127.0.0.1", "127.0.0.2"]
        assert {engine["pid"] for engine in model["engines"]} == {None}
        requests = [(known, client.send("infer", greedy(known))) for known in LONG[:STREAMS]]
        for known, request in requests:
            assert client.response(request)["result"]["text"] == known.answer


def test_a_seat_that_is_killed_costs_its_own_requests_and_is_placed_anew(folder: Path) -> None:
    with clustered(folder) as daemon, daemon.connect() as client:
        streams = [client.send("infer_stream", endless()) for _ in range(STREAMS)]
        for stream in streams:
            client.first_chunk(stream)
        seat = seat_on(daemon, "127.0.0.1")
        engine = seat.children()[0]
        seat.kill()
        until_up(daemon, 1)
        until_up(daemon, 2)
        for stream in streams:
            client.notify("$/cancelRequest", {"id": stream})
        reasons = [client.response(stream)["error"]["data"]["reason"] for stream in streams]
        assert (reasons.count("engine_lost"), reasons.count("cancelled")) == (4, 4)
        engine.wait(timeout=PATIENCE_S)
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


def test_a_host_that_falls_silent_is_noticed_and_its_engine_placed_on_another(folder: Path) -> None:
    with clustered(folder) as daemon, daemon.connect() as client:
        streams = [client.send("infer_stream", endless()) for _ in range(STREAMS)]
        for stream in streams:
            client.first_chunk(stream)
        seat = seat_on(daemon, "127.0.0.1")
        seat.send_signal(signal.SIGSTOP)
        try:
            until_up(daemon, 1)
            until_up(daemon, 2)
            assert {engine["host"] for engine in big(client)["engines"]} == {"127.0.0.2"}
        finally:
            engine = seat.children()[0]
            seat.send_signal(signal.SIGCONT)
        for stream in streams:
            client.notify("$/cancelRequest", {"id": stream})
        reasons = [client.response(stream)["error"]["data"]["reason"] for stream in streams]
        assert (reasons.count("engine_lost"), reasons.count("cancelled")) == (4, 4)
        # It ends once it runs again, because its daemon is gone.
        engine.wait(timeout=PATIENCE_S)


def test_a_placer_that_is_killed_under_load_loses_no_request(folder: Path) -> None:
    with clustered(folder) as daemon, daemon.connect() as client:
        streams = [client.send("infer", greedy(known)) for known in LONG[:STREAMS]]
        (placer,) = helpers(daemon, "placer")
        placer.kill()
        for known, stream in zip(LONG, streams, strict=False):
            assert client.response(stream)["result"]["text"] == known.answer
        seat_on(daemon, "127.0.0.2").kill()
        until_up(daemon, 1)
        until_up(daemon, 2)
        (again,) = helpers(daemon, "placer")
        assert again.pid != placer.pid


def test_a_lack_of_places_is_told_and_ends_with_the_next_node(folder: Path) -> None:
    (folder / "nodes").write_text("")
    with clustered(folder, up=0) as daemon, daemon.connect() as client:
        waiting = client.send("infer", greedy(KNOWN[0]))
        while "waiting_for" not in big(client):
            pass
        model = big(client)
        assert (model["state"], model["waiting_for"]) == ("loading", "no node has a CPU left")
        (folder / "nodes").write_text("n1")
        assert client.response(waiting)["result"]["text"] == KNOWN[0].answer
        # The answer needs one engine; the other one may wait for its next try.
        until_up(daemon, 2)
        assert "waiting_for" not in big(client)


def test_no_seat_and_no_engine_outlives_a_daemon_that_is_killed(folder: Path) -> None:
    with clustered(folder) as daemon:
        seats = helpers(daemon, "seat")
        engines = [engine for seat in seats for engine in seat.children()]
        assert (len(seats), len(engines)) == (2, 2)
        daemon.kill()
        _, left = psutil.wait_procs([*seats, *engines], timeout=PATIENCE_S)
        assert all(is_gone(process) for process in left)
