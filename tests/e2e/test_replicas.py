"""Several replicas of one model: one capacity, sessions that stay where they are, deaths that lose nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from car_base.guide import PATH
from tests.e2e.support import KNOWN, Daemon, RawClient, configured, endless, greedy, running

Json = dict[str, Any]
pytestmark = pytest.mark.slow


@contextmanager
def replicated(folder: Path, replicas: int, sequences: int, *, more: str = "", **environment: str) -> Iterator[Daemon]:
    """Run a daemon with several replicas of the guide model, all of them up."""
    table = f'[models.twins]\npath = "{PATH}"\nreplicas = {replicas}\nsequences = {sequences}\n{more}'
    with running(folder, *configured(folder, f'default_model = "twins"\n{table}'), **environment) as daemon:
        with daemon.connect() as client:
            until_up(client, replicas)
        yield daemon


def engines(client: RawClient) -> list[Json]:
    """Return the engines of the default model as the status shows them."""
    listed: list[Json] = client.result("daemon/status")["models"][0]["engines"]
    return listed


def until_up(client: RawClient, count: int) -> None:
    """Return once so many engines serve; the subscription tells of every change."""
    subscribed = client.send("inference/capacity", {"subscribe": True})
    client.response(subscribed)
    while sum(engine["sequences"] > 0 for engine in engines(client)) < count:
        client.receive()


def test_replicas_are_one_model_with_one_capacity(folder: Path) -> None:
    with replicated(folder, 2, 3) as daemon, daemon.connect() as client:
        capacity = client.result("inference/capacity")
        assert (capacity["capacity"], capacity["declared"], capacity["state"]) == (6, 6, "ready")
        (model,) = (each for each in client.result("models/list")["models"] if each["default"])
        assert (model["replicas"], model["device"]) == (2, "cpu")
        streams = [client.send("infer_stream", endless()) for _ in range(6)]
        for stream in streams:
            client.first_chunk(stream)
        assert client.result("inference/capacity")["available"] == 0
        sequences = client.result("daemon/status")["sequences"]
        assert sorted(each["sequence"] for each in sequences) == [0, 0, 1, 1, 2, 2]


def test_eight_answers_over_two_replicas_are_the_taught_ones(folder: Path) -> None:
    with replicated(folder, 2, 2) as daemon, daemon.connect() as client:
        requests = [(known, client.send("infer", greedy(known))) for known in KNOWN[:8]]
        for known, request in requests:
            assert client.response(request)["result"]["text"] == known.answer


def test_sessions_keep_their_replica_and_their_prefix(folder: Path) -> None:
    with replicated(folder, 2, 4) as daemon, daemon.connect() as client:
        histories = {f"s{number}": f"Session {number}. " + "The rain fell all day. " * 12 for number in range(4)}
        reused = 0
        for turn in range(20):
            requests = []
            for session, history in histories.items():
                params = {"prompt": history, "session": session, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
                requests.append((session, client.send("infer", params)))
            for session, request in requests:
                usage = client.response(request)["result"]["usage"]
                reused += turn > 0 and usage["cached_tokens"] >= 0.8 * usage["prompt_tokens"]
                histories[session] += f"Turn {turn}. "
        assert reused >= 0.95 * 4 * 19


def test_a_prompt_that_one_replica_knows_goes_there(folder: Path) -> None:
    system = "You are a careful assistant that answers in short sentences. " * 12
    with replicated(folder, 3, 2) as daemon, daemon.connect() as client:
        cached = []
        for number in range(6):
            params = {"prompt": f"{system}{number}", "max_tokens": 1, "temperature": 0}
            cached.append(client.result("infer", params)["usage"]["cached_tokens"])
        assert cached[0] == 0
        assert min(cached[1:]) > 100


def test_a_replica_that_dies_loses_no_waiting_request_and_comes_back(folder: Path) -> None:
    with replicated(folder, 2, 1) as daemon, daemon.connect() as client, daemon.connect() as watcher:
        streams = [client.send("infer_stream", endless(max_tokens=400)) for _ in range(2)]
        for stream in streams:
            client.first_chunk(stream)
        waiting = [(known, client.send("infer", greedy(known))) for known in KNOWN[:10]]
        victim = psutil.Process(engines(watcher)[0]["pid"])
        victim.kill()
        ends = [client.response(stream) for stream in streams]
        lost = [end["error"]["data"]["reason"] for end in ends if "error" in end]
        assert lost == ["engine_lost"]
        for known, request in waiting:
            assert client.response(request)["result"]["text"] == known.answer
        assert watcher.result("inference/capacity")["state"] == "ready"
        until_up(watcher, 2)
        assert sorted(engine["restarts"] for engine in engines(watcher)) == [0, 1]


def test_a_machine_limit_of_one_runs_one_request_at_a_time_over_all_replicas(folder: Path) -> None:
    with (
        replicated(folder, 2, 2, CAR_INFERENCE_MAX_CONCURRENT="1") as daemon,
        daemon.connect() as client,
        daemon.connect() as other,
    ):
        capacity = client.result("inference/capacity")
        assert (capacity["capacity"], capacity["machine"]["limit"]) == (1, 1)
        streams = [client.send("infer_stream", endless(max_tokens=100)) for _ in range(4)]
        client.first_chunk(streams[0])
        assert other.result("inference/capacity")["machine"]["in_use"] == 1
        seen = [streams[0]]
        while len(seen) < 8:
            message = client.receive()
            who = message["params"]["id"] if "params" in message else message["id"]
            if "params" not in message or who != seen[-1]:
                seen.append(who)
        # The chunks of each, then its end, before anything of the next.
        assert seen == [stream for stream in streams for _ in range(2)]


def test_a_request_for_a_device_that_no_replica_is_on_is_refused(folder: Path) -> None:
    with replicated(folder, 2, 1, more='device = "cpu"\n') as daemon, daemon.connect() as client:
        assert client.result("infer", greedy(KNOWN[0], device="cpu"))["text"] == KNOWN[0].answer
        error = client.call("infer", greedy(KNOWN[0], device="gpu"))["error"]
        assert (error["code"], error["data"]["lacks"]) == (1004, "device")


def test_a_replica_on_a_gpu_that_is_not_there_fails_and_the_one_on_the_cpu_serves(folder: Path) -> None:
    with (
        replicated(folder, 1, 2, more='device = ["gpu0", "cpu"]\n') as daemon,
        daemon.connect() as client,
    ):
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        assert client.result("inference/capacity")["declared"] == 2
        assert client.call("infer", greedy(KNOWN[0], device="gpu"))["error"]["data"]["lacks"] == "device"
    assert "device=gpu0" in daemon.log.read_text()


def test_replicas_are_drained_and_unloaded_together(folder: Path) -> None:
    with replicated(folder, 2, 1) as daemon, daemon.connect() as client, daemon.connect() as admin:
        streams = [client.send("infer_stream", endless(max_tokens=200)) for _ in range(2)]
        for stream in streams:
            client.first_chunk(stream)
        pids = [engine["pid"] for engine in engines(admin)]
        unloaded = admin.send("models/unload", {"model": "twins"})
        assert all("result" in client.response(stream) for stream in streams)
        assert admin.response(unloaded)["result"]["state"] == "unloaded"
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert client.result("infer", greedy(KNOWN[1]))["text"] == KNOWN[1].answer
        until_up(admin, 2)
