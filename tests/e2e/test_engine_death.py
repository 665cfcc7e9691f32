"""The engine dies; the daemon and its clients go on."""

import signal
from pathlib import Path

from tests.e2e.support import KNOWN, Daemon, endless, greedy, running


def kill_engine(daemon: Daemon) -> None:
    daemon.engine().send_signal(signal.SIGKILL)


def test_streams_that_had_sent_something_are_lost_and_all_else_runs_again(folder: Path) -> None:
    with running(folder, "--capacity", "2") as daemon, daemon.connect() as client:
        streams = [client.send("infer_stream", endless()) for _ in range(2)]
        for request in streams:
            client.first_chunk(request)
        waiting = {client.send("infer", greedy(known)): known for known in KNOWN[:10]}
        kill_engine(daemon)
        for request in streams:
            error = client.response(request)["error"]
            assert (error["code"], error["data"]["reason"]) == (1005, "engine_lost")
        for request, known in waiting.items():
            assert client.response(request)["result"]["text"] == known.answer
        assert client.result("daemon/status")["models"][0]["engines"][0]["restarts"] == 1


def test_a_single_answer_survives_one_death_of_its_engine(folder: Path) -> None:
    with running(folder, "--capacity", "1") as daemon, daemon.connect() as client:
        running_one = client.send("infer", endless(max_tokens=1500))
        while not client.result("daemon/status")["sequences"]:
            pass
        kill_engine(daemon)
        answer = client.response(running_one)["result"]
        assert answer["usage"]["completion_tokens"] == 1500


def test_capacity_falls_to_one_while_no_engine_is_up_and_comes_back(folder: Path) -> None:
    with running(folder, "--capacity", "3") as daemon, daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        assert client.result("inference/capacity", {"subscribe": True})["capacity"] == 3
        kill_engine(daemon)
        lost, ready = client.receive()["params"], client.receive()["params"]
        assert (lost["state"], lost["capacity"], lost["declared"]) == ("loading", 1, None)
        assert (ready["state"], ready["capacity"], ready["declared"]) == ("ready", 3, 3)
        assert lost["generation"] < ready["generation"]
