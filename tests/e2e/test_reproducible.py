"""Reproducible answers through the socket: equal to the last bit of their log-probabilities, whatever else runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from car_base.guide import PATH
from tests.e2e.reproducible import WAYS, differing, questions
from tests.e2e.support import Daemon, Json, RawClient, configured, endless
from tools.random_model import generate

Start = Callable[..., Daemon]
# More than 256 cells: below, llama.cpp's results depend less on threads and on other rows.
TOKENS = [40 + place * 7 % 200 for place in range(600)]


def exact(length: int = 600, **more: Any) -> Json:
    """Return the params of a reproducible request."""
    options = {"max_tokens": 20, "ignore_eos": True, "logprobs": 5, "return_tokens": True, "reproducible": True}
    return {"tokens": TOKENS[:length], **options, **more}


def content(answer: Json) -> Json:
    """Return what has to be equal."""
    return {name: answer[name] for name in ("text", "tokens", "logprobs", "seed", "finish_reason")}


@pytest.mark.parametrize("temperature", [0, 1.2])
def test_an_answer_is_the_same_alone_cached_and_beside_others(
    client: RawClient, daemon: Daemon, temperature: float
) -> None:
    asked = exact(temperature=temperature, cache_salt=f"at {temperature}")
    alone = client.result("infer", asked)
    cached = client.result("infer", asked)
    assert (alone["usage"]["cached_tokens"], cached["usage"]["cached_tokens"]) == (0, 576)
    with daemon.connect() as other:
        for stream in [other.send("infer_stream", endless()) for _ in range(4)]:
            other.first_chunk(stream)
        requests = [client.send("infer", {**asked, "cache_prompt": place > 0}) for place in range(3)]
        beside = [client.response(request)["result"] for request in requests]
    assert [content(each) for each in (cached, *beside)] == [content(alone)] * 4


def test_without_a_seed_it_samples_with_seed_0(client: RawClient) -> None:
    answers = [client.result("infer", exact(50, temperature=2, **seed)) for seed in ({}, {}, {"seed": 0})]
    assert [content(answer) for answer in answers] == [{**content(answers[0]), "seed": 0}] * 3


def test_several_answers_are_those_of_requests_with_their_seeds(client: RawClient) -> None:
    asked = exact(300, temperature=1.5)
    several = client.result("infer", {**asked, "n": 3})
    single = [client.result("infer", {**asked, "seed": seed}) for seed in range(3)]
    assert several["seed"] == 0
    assert [each["logprobs"] for each in several["answers"]] == [each["logprobs"] for each in single]


def test_an_answer_under_a_schema_is_the_same_beside_others(client: RawClient, daemon: Daemon) -> None:
    asked = exact(400, json_schema={"type": "array", "items": {"type": "integer"}}, temperature=1.5, ignore_eos=False)
    alone = client.result("infer", asked)
    with daemon.connect() as other:
        other.first_chunk(other.send("infer_stream", endless()))
        assert content(client.result("infer", asked)) == content(alone)


@pytest.mark.parametrize("saved_bytes", [0, 10**9])
def test_a_parked_answer_is_the_same_with_and_without_room_for_its_cells(
    start: Start, folder: Path, client: RawClient, saved_bytes: int
) -> None:
    asked = exact(max_tokens=300, priority="throughput")
    expected = client.result("infer", asked)
    settings = configured(folder, f"[scheduler]\nsaved_bytes = {saved_bytes}\n")
    daemon = start("--capacity", "1", *settings).ready()
    with daemon.connect() as single, daemon.connect() as other:
        stream = single.send("infer_stream", asked)
        chunks = [single.first_chunk(stream)]
        for _ in range(2):
            urgent = other.send("infer_stream", endless())
            other.first_chunk(urgent)
            assert other.result("inference/capacity")["parked"] == 1
            other.notify("$/cancelRequest", {"id": urgent})
            assert "error" in other.response(urgent)
        while "result" not in (message := single.receive()):
            chunks.append(message["params"])
    assert [token for chunk in chunks for token in chunk["tokens"]] == expected["tokens"]
    assert [each for chunk in chunks for each in chunk["logprobs"]] == expected["logprobs"]


def test_a_request_for_a_gpu_is_refused(client: RawClient) -> None:
    error = client.call("infer", exact(20, device="gpu"))["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "reproducible")
    assert "leave out `device`, which is gpu" in error["data"]["why"]


def test_a_model_on_gpus_alone_refuses_before_it_is_loaded(start: Start, folder: Path) -> None:
    table = f'default_model = "guide"\n[models.far]\npath = "{PATH}"\ndevice = "gpu0"\n'
    daemon = start(*configured(folder, table)).ready()
    with daemon.connect() as client:
        error = client.call("infer", exact(20, model="far"))["error"]
    assert (error["code"], error["data"]["lacks"]) == (1004, "reproducible")


@pytest.mark.slow
def test_a_model_of_135_million_weights_gives_the_same_answers_in_every_way(folder: Path) -> None:
    model = folder / "random.gguf"
    generate(model, "135m", "q8_0")
    # Each way is a daemon of its own, so that all of them are after a restart.
    assert dict(differing(model, questions(3, 8, 100), "threads = 1\n")) == dict.fromkeys(WAYS, 0)
