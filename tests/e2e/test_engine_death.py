"""The engine dies; the daemon and its clients go on."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil
import pytest

from tests.e2e.support import KNOWN, PATIENCE_S, Daemon, RawClient, endless, greedy, is_gone, running, slowest_answer

pytestmark = pytest.mark.slow

# A prompt whose prefill takes several steps.
LONG_PROMPT = [7] * 3500


def kill_engine(daemon: Daemon) -> psutil.Process:
    engine = daemon.engine()
    engine.send_signal(signal.SIGKILL)
    return engine


def restarts(client: RawClient) -> int:
    return int(client.result("daemon/status")["models"][0]["engines"][0]["restarts"])


def until_in_phase(client: RawClient, phase: str) -> None:
    """Return once a sequence is in this phase."""
    while not any(each["phase"] == phase for each in client.result("daemon/status")["sequences"]):
        pass


def until_all_are_prepared(client: RawClient) -> None:
    """Return once no request waits for its own prompt: an engine that dies meanwhile dies under it too."""
    while any(each["awaits"] == "prompt" for each in client.result("daemon/status")["waiting"]):
        pass


def until_replaced(client: RawClient, engine: psutil.Process) -> None:
    """Return once another engine is up."""
    while not any(each["pid"] != engine.pid for each in client.result("daemon/status")["models"][0]["engines"]):
        pass


def test_four_streams_are_lost_at_once_and_twenty_that_wait_lose_nothing(folder: Path) -> None:
    done = Event()
    with running(folder, "--capacity", "4") as daemon, daemon.connect() as client, ThreadPoolExecutor() as pool:
        daemon.ready()
        probing = pool.submit(slowest_answer, daemon, done)
        streams = [client.send("infer_stream", endless()) for _ in range(4)]
        for request in streams:
            client.first_chunk(request)
        waiting = {client.send("infer", greedy(known)): known for known in (KNOWN * 2)[:20]}
        while client.result("inference/capacity")["queued"] < 20:
            pass
        kill_engine(daemon)
        killed = time.monotonic()
        ended: list[int] = []
        while len(ended) < 4:
            message = client.receive()
            if "method" not in message:
                error = message["error"]
                assert (error["code"], error["data"]["reason"], error["data"]["started"]) == (1005, "engine_lost", True)
                assert "quarantined" not in error["data"]
                ended.append(message["id"])
        # Before another engine answers any that waits.
        assert sorted(ended) == streams
        first, *others = waiting.items()
        assert client.response(first[0])["result"]["text"] == first[1].answer
        outage_s = time.monotonic() - killed
        for request, known in others:
            assert client.response(request)["result"]["text"] == known.answer
        assert restarts(client) == 1
        done.set()
        # No probe waited for the next engine.
        assert probing.result() < outage_s


def test_a_death_while_nothing_runs_costs_nothing(folder: Path) -> None:
    with running(folder) as daemon, daemon.connect() as client:
        daemon.ready()
        kill_engine(daemon)
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        assert restarts(client) == 1


def test_a_death_while_the_model_loads_costs_nothing(folder: Path) -> None:
    with running(folder) as daemon, daemon.connect() as client:
        waiting = {client.send("infer", greedy(known)): known for known in KNOWN[:3]}
        tokens = client.send("tokenize", {"text": "Hi"})
        while not client.result("daemon/status")["models"][0]["engines"]:
            pass
        assert client.result("inference/capacity")["state"] == "loading"
        kill_engine(daemon)
        for request, known in waiting.items():
            assert client.response(request)["result"]["text"] == known.answer
        assert client.response(tokens)["result"]["tokens"]
        assert restarts(client) == 1


def test_a_death_in_prefill_has_the_prompt_run_again(folder: Path) -> None:
    with running(folder, "--capacity", "1") as daemon, daemon.connect() as client:
        daemon.ready()
        stream = client.send("infer_stream", {"tokens": LONG_PROMPT, "max_tokens": 4, "ignore_eos": True})
        with daemon.connect() as other:
            until_in_phase(other, "prefill")
            kill_engine(daemon)
        answer = client.response(stream)["result"]
        assert answer["usage"] == {"prompt_tokens": 3500, "cached_tokens": 0, "completion_tokens": 4}


def test_what_is_prepared_or_looked_up_while_the_engine_dies_is_tried_once_more(folder: Path) -> None:
    with running(folder) as daemon, daemon.connect() as client:
        engine = daemon.ready().engine()
        engine.suspend()
        request = client.send("infer", greedy(KNOWN[0]))
        tokens = client.send("tokenize", {"text": "Hi"})
        client.result("inference/capacity")
        engine.kill()
        assert client.response(request)["result"]["text"] == KNOWN[0].answer
        assert client.response(tokens)["result"]["tokens"]


def test_a_single_answer_survives_one_death_of_its_engine(folder: Path) -> None:
    with running(folder, "--capacity", "1") as daemon, daemon.connect() as client:
        running_one = client.send("infer", endless(max_tokens=800))
        while not client.result("daemon/status")["sequences"]:
            pass
        kill_engine(daemon)
        answer = client.response(running_one)["result"]
        assert answer["usage"]["completion_tokens"] == 800


def test_a_request_that_was_running_in_two_deaths_is_quarantined_and_the_next_is_served(folder: Path) -> None:
    with running(folder, "--capacity", "1") as daemon, daemon.connect() as client, daemon.connect() as other:
        poison = client.send("infer", endless())
        queued = client.send("infer", greedy(KNOWN[0]))
        for _ in range(2):
            until_in_phase(other, "decode")
            until_all_are_prepared(other)
            until_replaced(other, kill_engine(daemon))
        error = client.response(poison)["error"]
        assert (error["code"], error["data"]["quarantined"], error["data"]["retryable"]) == (1005, True, False)
        assert client.response(queued)["result"]["text"] == KNOWN[0].answer


def test_a_model_whose_engine_dies_six_times_is_failed_and_the_daemon_goes_on(folder: Path) -> None:
    with running(folder, "--capacity", "1") as daemon, daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        while client.result("inference/capacity")["state"] != "failed":
            for engine in psutil.Process(daemon.process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    engine.kill()
        reason = client.call("infer", greedy(KNOWN[1]))["error"]["data"]
        assert (reason["reason"], client.result("inference/capacity")["state"]) == ("model_unavailable", "failed")
        died = client.result("inference/capacity")["reason"]
        # A busy machine may finish a load before this test kills it.
        when = ("before the model was loaded", "within 30 s")
        assert died in [f"the engine died 6 times {each}; the last one was ended by signal 9 (Killed)" for each in when]
        assert client.result("models/list")["models"][0]["reason"] == died
    assert daemon.process.returncode == 0


def test_a_daemon_whose_engine_dies_at_every_load_exits_69(start: Callable[..., Daemon], folder: Path) -> None:
    daemon = start(LLAMA_CPP_LIB_PATH=str(folder / "none"))
    with daemon.connect() as client:
        assert client.reason("infer", greedy(KNOWN[0])) == "model_unavailable"
    assert daemon.process.wait(PATIENCE_S) == 69
    assert "llama.cpp does not start (" in daemon.log.read_text().splitlines()[-1]


def test_capacity_falls_to_one_while_no_engine_is_up_and_comes_back(folder: Path) -> None:
    with running(folder, "--capacity", "3") as daemon, daemon.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        assert client.result("inference/capacity", {"subscribe": True})["capacity"] == 3
        kill_engine(daemon)
        lost, ready = client.receive()["params"], client.receive()["params"]
        assert (lost["state"], lost["capacity"], lost["declared"]) == ("loading", 1, None)
        assert (ready["state"], ready["capacity"], ready["declared"]) == ("ready", 3, 3)
        assert lost["generation"] < ready["generation"]


def test_an_engine_leaves_no_core_and_is_the_first_to_go_where_memory_runs_out(folder: Path) -> None:
    with running(folder) as daemon:
        engine = Path(f"/proc/{daemon.ready().engine().pid}")
        own = int(Path(f"/proc/{daemon.process.pid}/oom_score_adj").read_text())
        cores = next(line for line in (engine / "limits").read_text().splitlines() if line.startswith("Max core"))
        assert cores.split()[4:6] == ["0", "0"]
        assert int((engine / "oom_score_adj").read_text()) == min(1000, own + 500)


def assert_gone_soon(engine: psutil.Process) -> None:
    # It may be importing still; once it reads, it ends in milliseconds.
    started = time.monotonic()
    while not is_gone(engine):
        assert time.monotonic() - started < PATIENCE_S


def test_an_engine_whose_daemon_was_killed_while_it_loads_ends_by_itself(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with daemon.connect() as client:
        while not (engines := client.result("daemon/status")["models"][0]["engines"]):
            pass
        engine = psutil.Process(engines[0]["pid"])
        daemon.kill()
    assert_gone_soon(engine)


def test_an_engine_whose_daemon_was_killed_in_a_long_prefill_ends_by_itself(start: Callable[..., Daemon]) -> None:
    daemon = start("--capacity", "1")
    engine = daemon.ready().engine()
    with daemon.connect() as client, daemon.connect() as other:
        client.send("infer", {"tokens": LONG_PROMPT, "max_tokens": 4})
        until_in_phase(other, "prefill")
        daemon.kill()
    assert_gone_soon(engine)
