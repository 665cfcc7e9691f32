"""Several models of one daemon: loaded on their first use, unloaded for each other, by order and by time."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.client.carctl.command import carctl, carctl_on_terminal
from tests.e2e.pool import LONGEST, engines, loaded, long, serving, short, states, until
from tests.e2e.support import KNOWN, Daemon, RawClient, greedy
from tools.random_model import generate

pytestmark = pytest.mark.slow
SHORTAGE = re.compile(r"not enough memory is free: .* \d+ MiB, \d+ MiB are free; unload or .* budget_bytes")


@pytest.fixture(scope="module")
def pair() -> Iterator[Daemon]:
    """A daemon of two models, for tests that change neither their files nor their configuration."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, serving(Path(name), "ab") as daemon:
        yield daemon


@pytest.fixture
def two(pair: Daemon) -> Daemon:
    """That daemon, whose second model is not loaded."""
    with pair.connect() as client:
        client.result("models/unload", {"model": "b"})
    return pair


def loads_of(daemon: Daemon, model: str) -> int:
    """Return how often a model was loaded."""
    lines = daemon.log.read_text().splitlines()
    return sum("capacity.declared" in line and f"model={model}" in line for line in lines)


def test_a_model_is_loaded_on_its_first_use_once_for_all_requests(two: Daemon) -> None:
    before = loads_of(two, "b")
    with two.connect() as client:
        assert states(client) == {"a": "ready", "b": "unloaded"}
        requests = [client.send("infer", short("b")) for _ in range(8)]
        tokens = client.send("tokenize", {"text": "Hi", "model": "b"})
        vectors = client.send("embed", {"input": ["Hi"], "model": "b"})
        assert client.result("inference/capacity", {"model": "b"})["state"] == "loading"
        texts = {client.response(request)["result"]["text"] for request in requests}
        assert len(texts) == 1
        assert client.response(tokens)["result"]["tokens"]
        assert client.response(vectors)["result"]["embeddings"]
        assert states(client) == {"a": "ready", "b": "ready"}
    assert loads_of(two, "b") == before + 1


def test_asking_for_the_capacity_of_a_model_loads_nothing(two: Daemon) -> None:
    with two.connect() as client:
        capacity = client.result("inference/capacity", {"model": "b"})
        assert (capacity["state"], capacity["capacity"], capacity["declared"]) == ("unloaded", 1, None)
        client.result("infer", short("a"))
        assert states(client)["b"] == "unloaded"


def test_the_least_recently_used_model_makes_room(folder: Path) -> None:
    with serving(folder, "abcd", room_for=3) as daemon, daemon.connect() as client:
        for model in "abcb":
            client.result("infer", short(model))
        assert loaded(client) == "abc"
        client.result("infer", short("d"))
        assert loaded(client) == "abd"
        assert len(engines(daemon)) == 3


def test_the_default_model_never_makes_room_and_neither_does_a_pinned_one(folder: Path) -> None:
    with serving(folder, "abc", room_for=2, b="pinned = true") as daemon, daemon.connect() as client:
        client.result("infer", short("b"))
        error = client.call("infer", short("c"))["error"]
        assert (error["code"], error["data"]["reason"]) == (1004, "model_unavailable")
        assert error["data"]["needed_bytes"] > error["data"]["free_bytes"]
        assert (loaded(client), states(client)["c"]) == ("ab", "unloaded")
        assert [each["pinned"] for each in client.result("models/list")["models"]][:3] == [True, False, True]


def test_a_model_with_work_is_not_unloaded_and_requests_for_its_memory_are_served_after_it(folder: Path) -> None:
    with serving(folder, "abc", room_for=2) as daemon, daemon.connect() as client, daemon.connect() as other:
        client.result("infer", short("b"))
        stream = client.send("infer_stream", long("b"))
        client.first_chunk(stream)
        waiting = [other.send("infer", short("c")) for _ in range(3)]
        assert states(other) == {"a": "ready", "b": "ready", "c": "loading"}
        assert client.response(stream)["result"]["usage"]["completion_tokens"] == LONGEST
        assert all("result" in other.response(request) for request in waiting)
        assert loaded(client) == "ac"
    assert (loads_of(daemon, "b"), loads_of(daemon, "c")) == (1, 1)


def test_requests_for_models_that_drive_each_other_out_are_all_served(folder: Path) -> None:
    with serving(folder, "abc", room_for=2) as daemon, daemon.connect() as client:
        alone = {model: client.result("infer", short(model))["text"] for model in "bc"}
        requests = [(model, client.send("infer", short(model))) for model in "bcbbcb"]
        for model, request in requests:
            assert client.response(request)["result"]["text"] == alone[model]
        assert len(engines(daemon)) == 2


def test_a_model_that_can_have_no_room_is_refused_with_both_figures(folder: Path) -> None:
    with serving(folder, "ab", room_for=1) as daemon, daemon.connect() as client:
        refusals = [client.call("infer", short("b")), client.call("tokenize", {"text": "Hi", "model": "b"})]
        refusals.append(client.call("models/load", {"model": "b"}))
        for refusal in refusals:
            data = refusal["error"]["data"]
            assert data["reason"] == "model_unavailable"
            assert SHORTAGE.fullmatch(data["why"])
            assert data["needed_bytes"] > data["free_bytes"] >= 0
        assert client.result("infer", short("a"))
        listed = next(each for each in client.result("models/list")["models"] if each["name"] == "b")
        assert listed["state"] == "unloaded"
        assert SHORTAGE.fullmatch(listed["reason"])


def test_a_budget_that_a_reload_raises_counts_at_once(folder: Path) -> None:
    with serving(folder, "ab", room_for=1) as daemon, daemon.connect() as client:
        assert client.reason("infer", short("b")) == "model_unavailable"
        config = folder / "card.toml"
        config.write_text(config.read_text().replace("budget_bytes = ", "budget_bytes = 9"))
        client.result("daemon/reload")
        assert client.result("infer", short("b"))["text"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("infer", {"prompt": "Hi", "model": "none"}),
        ("tokenize", {"text": "Hi", "model": "none"}),
        ("models/load", {"model": "none"}),
        ("models/unload", {"model": "none"}),
    ],
)
def test_an_unknown_model_is_unavailable(client: RawClient, method: str, params: dict[str, str]) -> None:
    assert client.reason(method, params) == "model_unavailable"


def test_a_model_whose_file_was_removed_while_it_was_unloaded_fails_and_the_others_are_served(folder: Path) -> None:
    with serving(folder, "ab") as daemon, daemon.connect() as client:
        client.result("infer", short("b"))
        assert client.result("models/unload", {"model": "b"})["state"] == "unloaded"
        (folder / "b.gguf").unlink()
        for _ in range(2):
            error = client.call("infer", short("b"))["error"]["data"]
            assert (error["reason"], error["why"]) == ("model_unavailable", "the file cannot be read")
        assert states(client) == {"a": "ready", "b": "failed"}
        assert client.reason("models/load", {"model": "b"}) == "model_unavailable"
        assert client.result("infer", short("a"))
    assert daemon.process.returncode == 0


def test_a_bad_file_of_another_model_does_not_keep_the_daemon_from_serving(folder: Path) -> None:
    with serving(folder, "ab") as daemon, daemon.connect() as client:
        (folder / "b.gguf").write_bytes(b"GGUF but no more")
        version = int.from_bytes(b" but", "little")
        assert client.reason("embed", {"input": ["Hi"], "model": "b"}) == "model_unavailable"
        listed = next(each for each in client.result("models/list")["models"] if each["name"] == "b")
        assert (listed["state"], listed["reason"]) == (
            "failed",
            f"this GGUF version is not supported: {version}; 2 and 3 are",
        )
        assert client.result("infer", short("a"))


def test_a_model_idle_for_its_keep_alive_is_unloaded_and_the_default_one_stays(folder: Path) -> None:
    brief = "keep_alive_s = 0.2"
    with serving(folder, "ab", a=brief, b=brief) as daemon, daemon.connect() as client:
        client.result("infer", short("b"))
        until(client, "b", "unloaded")
        assert (loaded(client), len(engines(daemon))) == ("a", 1)
        assert client.result("infer", short("b"))["text"]


def test_a_requested_load_reports_progress_and_then_the_entry(two: Daemon) -> None:
    with two.connect() as client:
        request = client.send("models/load", {"model": "b", "progress": True})
        told = []
        while "id" not in (message := client.receive()):
            assert message["method"] == "models/progress"
            told.append(message["params"])
        size = (two.path.parent / "b.gguf").stat().st_size
        assert {(each["id"], each["model"], each["total"]) for each in told} == {(request, "b", size)}
        done = [each["done"] for each in told]
        assert done == sorted(done)
        assert 0 <= done[0] < done[-1] == size
        entry = message["result"]
        assert (entry["name"], entry["state"], entry["capacity"]) == ("b", "ready", 2)
        assert client.result("models/load", {"model": "b"})["state"] == "ready"


def test_a_busy_model_finishes_before_it_is_unloaded_and_newcomers_have_it_loaded_again(two: Daemon) -> None:
    before = loads_of(two, "b")
    with two.connect() as client, two.connect() as other:
        other.result("infer", short("b"))
        streams = [client.send("infer_stream", long("b")) for _ in range(3)]
        client.first_chunk(streams[0])
        unload = other.send("models/unload", {"model": "b"})
        until(other, "b", "draining")
        newcomer = other.send("infer", short("b"))
        answer = other.response(unload)["result"]
        assert (answer["name"], answer["state"]) == ("b", "unloaded")
        for stream in streams:
            assert client.response(stream)["result"]["usage"]["completion_tokens"] == LONGEST
        assert other.response(newcomer)["result"]
        assert loaded(other) == "ab"
    assert loads_of(two, "b") == before + 2


def test_a_subscriber_never_gets_the_same_change_twice(two: Daemon) -> None:
    with two.connect() as client, two.connect() as subscriber:
        client.result("infer", short("b"))
        heard = [subscriber.result("inference/capacity", {"model": "b", "subscribe": True})]
        stream = client.send("infer_stream", long("b"))
        client.first_chunk(stream)
        unload = client.send("models/unload", {"model": "b"})
        newcomer = client.send("infer", short("b"))
        while heard[-1]["state"] != "loading":
            heard.append(subscriber.receive()["params"])
        while heard[-1]["state"] != "ready":
            heard.append(subscriber.receive()["params"])
        for request in (stream, unload, newcomer):
            assert "result" in client.response(request)
    generations = [each["generation"] for each in heard]
    assert generations == sorted(set(generations))


def test_the_default_model_is_unloaded_by_order_alone_and_loaded_again_on_its_next_use(two: Daemon) -> None:
    with two.connect() as client:
        assert client.result("models/unload", {"model": "a"})["state"] == "unloaded"
        assert engines(two) == []
        assert client.result("infer", short("a"))["text"]


def test_a_cancelled_load_request_is_answered_and_the_others_get_their_load(two: Daemon) -> None:
    with two.connect() as client, two.connect() as other:
        mine = client.send("models/load", {"model": "b"})
        theirs = other.send("models/load", {"model": "b"})
        client.notify("$/cancelRequest", {"id": mine})
        assert client.response(mine)["error"]["code"] == -32800
        assert other.response(theirs)["result"]["state"] == "ready"


def test_a_deadline_that_passes_while_the_model_loads_is_kept(two: Daemon) -> None:
    with two.connect() as client:
        assert client.reason("infer", short("b", timeout_ms=1)) == "deadline_exceeded"
        assert client.reason("infer", short("b", wait=False)) == "overloaded"
        assert client.result("infer", short("b"))["text"]


def test_a_daemon_that_stops_while_a_model_loads_answers_waiting_requests(folder: Path) -> None:
    with serving(folder, "ab") as daemon, daemon.connect() as client:
        load = client.send("models/load", {"model": "b"})
        until(client, "b", "loading")
        daemon.process.terminate()
        assert client.response(load)["error"]["data"]["reason"] == "draining"
    assert daemon.process.returncode == 0


def test_a_limit_of_one_lets_one_request_run_at_a_time_over_all_models(folder: Path) -> None:
    with serving(folder, "ab", "--capacity", "1") as daemon, daemon.connect() as client, daemon.connect() as other:
        streams = [client.send("infer", long(model)) for model in "ab"]
        seen: set[str] = set()
        while len(seen) < 2:
            status = other.result("daemon/status")
            assert len(status["sequences"]) <= 1
            assert other.result("inference/capacity")["machine"]["in_use"] <= 1
            seen |= {each["model"] for each in status["sequences"]}
        assert all("result" in client.response(stream) for stream in streams)


def test_a_model_whose_file_is_removed_or_replaced_while_it_is_loaded_is_served_on(folder: Path) -> None:
    with serving(folder, "abc") as daemon, daemon.connect() as client:
        texts = {model: client.result("infer", short(model))["text"] for model in "bc"}
        (folder / "b.gguf").unlink()
        assert client.result("infer", short("b"))["text"] == texts["b"]
        (folder / "c.gguf").rename(folder / "b.gguf")
        assert client.result("infer", short("c"))["text"] == texts["c"]
        client.result("models/unload", {"model": "b"})
        assert client.result("infer", short("b"))["text"] == texts["c"]
        client.result("models/unload", {"model": "c"})
        assert client.call("infer", short("c"))["error"]["data"]["why"] == "the file cannot be read"


def test_a_file_that_is_cut_short_while_it_is_loaded_costs_its_own_requests_at_most(folder: Path) -> None:
    with serving(folder, "ab") as daemon, daemon.connect() as client:
        client.result("infer", short("b"))
        os.truncate(folder / "b.gguf", 1000)
        answer = client.call("infer", long("b"))
        # What llama.cpp copied when it loaded is served on; what it reads from the file ends the engine.
        assert "result" in answer or answer["error"]["data"]["reason"] in ("engine_lost", "model_unavailable")
        client.result("models/unload", {"model": "b"})
        assert client.reason("infer", short("b")) == "model_unavailable"
        assert client.result("infer", short("a"))["text"]


def test_a_large_model_reports_progress_at_least_five_times_and_its_request_can_be_cancelled(folder: Path) -> None:
    generate(folder / "large.gguf", "135m", "q8_0")
    with serving(folder, "a") as daemon, daemon.connect() as client, daemon.connect() as other:
        config = folder / "card.toml"
        config.write_text(f'{config.read_text()}[models.large]\npath = "{folder}/large.gguf"\nsequences = 1\n')
        client.result("daemon/reload")
        given_up = other.send("models/load", {"model": "large", "progress": True})
        request = client.send("models/load", {"model": "large", "progress": True})
        done = [client.receive()["params"]["done"] for _ in range(5)]
        assert done == sorted(set(done))
        other.notify("$/cancelRequest", {"id": given_up})
        assert other.response(given_up)["error"]["code"] == -32800
        assert client.response(request)["result"]["state"] == "ready"


def test_eight_loads_leave_no_descriptor_no_process_and_no_memory_behind(two: Daemon) -> None:
    with two.connect() as client:
        process = psutil.Process(two.process.pid)
        for round_number in range(9):
            assert client.result("models/load", {"model": "b"})["state"] == "ready"
            client.result("infer", short("b"))
            assert client.result("models/unload", {"model": "b"})["state"] == "unloaded"
            if round_number == 0:
                descriptors, memory = process.num_fds(), process.memory_info().rss
        # The daemon opens files of /proc, each for a moment.
        while process.num_fds() > descriptors:
            client.result("daemon/status")
        assert len(engines(two)) == 1
        grown = process.memory_info().rss - memory
        assert grown < 4 << 20, grown


def test_the_built_in_model_is_loaded_beside_another_default_one(folder: Path) -> None:
    with serving(folder, "a") as daemon, daemon.connect() as client:
        assert client.result("infer", greedy(KNOWN[0], model="guide"))["text"] == KNOWN[0].answer


def test_carctl_loads_a_model_and_draws_a_bar_on_a_terminal(two: Daemon) -> None:
    done = carctl("--socket", two.path, "models", "load", "b")
    assert (done.stdout, done.stderr) == (b"b: ready\n", b"")
    carctl("--socket", two.path, "models", "unload", "b")
    with carctl_on_terminal("--socket", two.path, "models", "load", "b", env={"TERM": "xterm"}) as terminal:
        shown = terminal.end().decode()
    assert "━" in shown
    assert shown.endswith("b: ready\n")
