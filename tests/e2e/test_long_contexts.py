"""Contexts of 8,192 and of 32,768 tokens: prefixes, parking, progress and refusals hold at both lengths."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import PATIENCE_S, Daemon, Json, configured, running
from tools.random_model import generate

pytestmark = pytest.mark.slow

KV_TYPES = {8192: "q8_0", 32_768: "f16"}
CLOSE = 0.05


@pytest.fixture(scope="module", params=[8192, 32_768])
def context(request: pytest.FixtureRequest) -> int:
    """The context of a sequence."""
    length: int = request.param
    return length


@pytest.fixture(scope="module")
def served(context: int) -> Iterator[Daemon]:
    """A daemon on a very small model, with one sequence of this context."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = Path(name)
        generate(folder / "m.gguf", "long", "q8_0")
        table = f'default_model = "m"\n[models.m]\npath = "{folder / "m.gguf"}"\nsequences = 1\n'
        table += f'context_tokens = {context}\nkv_type = "{KV_TYPES[context]}"\n'
        with running(folder, *configured(folder, table)) as daemon:
            yield daemon.ready()


def prompt(context: int, part: float, begin: str) -> Json:
    """Return the prompt of a request that fills a part of the context."""
    return {"tokens": [ord(letter) for letter in begin] + [7, 9, 11, 13] * int(context * part / 4), "temperature": 0}


def ask(served: Daemon, params: Json) -> Json:
    """Return an answer."""
    with served.connect() as client:
        client.socket.settimeout(PATIENCE_S)
        return client.result("infer", params)


def parked_tokens(served: Daemon) -> tuple[int, int]:
    """Return how many tokens of parked requests came back and were computed again, once the engine reports any."""
    deadline = time.monotonic() + PATIENCE_S
    with served.connect() as client:
        while True:
            (engine,) = client.result("daemon/status")["models"][0]["engines"]
            if engine["restored_tokens"] or engine["recomputed_tokens"]:
                return engine["restored_tokens"], engine["recomputed_tokens"]
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_long_prefix_is_computed_once(served: Daemon, context: int) -> None:
    params = prompt(context, 0.6, "once") | {"max_tokens": 2, "ignore_eos": True}
    first = ask(served, params)["usage"]
    assert (first["prompt_tokens"], first["cached_tokens"]) == (len(params["tokens"]), 0)
    params["tokens"] += [17] * 100
    again = ask(served, params)["usage"]
    assert again["cached_tokens"] >= first["prompt_tokens"] - 1


def test_a_long_prompt_is_reported_as_it_is_read(served: Daemon, context: int) -> None:
    params = prompt(context, 0.6, "read") | {"max_tokens": 1, "progress": True}
    with served.connect() as client:
        client.socket.settimeout(PATIENCE_S)
        request = client.send("infer_stream", params)
        done = []
        while "result" not in (message := client.receive()):
            if message["method"] == "infer_stream/progress" and message["params"]["phase"] == "prefill":
                assert message["params"]["total"] == len(params["tokens"])
                done.append(message["params"]["done"])
        assert message["id"] == request
    assert len(done) > 1
    assert done == sorted(done)


def test_a_long_stream_that_was_parked_goes_on_as_if_it_had_not_been(served: Daemon, context: int) -> None:
    params = prompt(context, 0.6, "park") | {"max_tokens": 400, "ignore_eos": True, "priority": "throughput"}
    undisturbed = ask(served, params)
    with served.connect() as client, served.connect() as urgent:
        client.socket.settimeout(PATIENCE_S)
        stream = client.send("infer_stream", params)
        text = client.first_chunk(stream)["text"]
        answer = urgent.result("infer", {"prompt": "now", "max_tokens": 3, "ignore_eos": True})
        # There is one sequence, and the stream is far from its end: it was parked.
        assert answer["usage"]["completion_tokens"] == 3
        while "result" not in (message := client.receive()):
            text += message["params"]["text"]
    assert message["result"]["usage"]["completion_tokens"] == 400
    assert text == undisturbed["text"]
    restored, recomputed = parked_tokens(served)
    assert (restored >= len(params["tokens"]), recomputed) == (True, 0)


def test_a_prompt_that_does_not_fit_is_refused_with_both_figures(served: Daemon, context: int) -> None:
    params = prompt(context, 1.0, "full") | {"max_tokens": 5}
    with served.connect() as client:
        error = client.call("infer", params)["error"]
    assert error["code"] == 1006
    figures = {"prompt_tokens": context + 4, "max_tokens": 5, "context_tokens": context}
    assert figures.items() <= error["data"].items()


def test_the_memory_of_its_cache_is_what_was_estimated(served: Daemon, context: int) -> None:
    with served.connect() as client:
        estimate = client.result("models/show", {"model": "m"})["estimate"]
        (engine,) = client.result("daemon/status")["models"][0]["engines"]
    assert (estimate["context_tokens"], estimate["kv_type"]) == (context, KV_TYPES[context])
    assert engine["kv_bytes_capacity"] == pytest.approx(estimate["kv_bytes_per_sequence"], rel=CLOSE)


def test_a_refusal_names_the_longest_context_of_one_sequence_and_the_settings_for_it(tmp_path: Path) -> None:
    long = {"prompt": "a b " * 400, "max_tokens": 8}
    short = configured(tmp_path, "[models.guide]\ncontext_tokens = 512\n")
    with running(tmp_path, *short) as daemon, daemon.ready().connect() as client:
        error = client.call("infer", long)["error"]
    assert (error["code"], error["data"]["context_tokens"], error["data"]["longest_tokens"]) == (1006, 512, 4096)
    settings = "sequences = 1\ncontext_tokens = 4096\n"
    assert error["data"]["why"].endswith("set sequences = 1 and context_tokens = 4096 for the model")
    longest = configured(tmp_path, f"[models.guide]\n{settings}")
    with running(tmp_path, *longest) as daemon, daemon.ready().connect() as client:
        assert client.result("infer", long)["usage"]["prompt_tokens"] > 512
        error = client.call("infer", {"prompt": "a b " * 4000})["error"]
    assert "longest_tokens" not in error["data"]
