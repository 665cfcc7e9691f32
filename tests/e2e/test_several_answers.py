"""`n` answers to one prompt through the socket: computed once, in their order, streamed as they come or whole."""

import asyncio
import json
import signal
import time
from collections.abc import Callable

import pytest

from car_client import AsyncClient, Client
from tests.e2e.support import CANARY, PATIENCE_S, Daemon, Json, RawClient, conversation, endless
from tests.e2e.test_clients import carctl
from tests.e2e.test_slow_readers import until

Start = Callable[..., Daemon]
WORDS = "The quick brown fox jumps over the lazy dog again. "


def several(words: int = 12, **more: object) -> Json:
    """Return the params of four answers to a prompt of some hundred tokens."""
    return {"prompt": f"{CANARY} {WORDS * words}", "n": 4, "seed": 5, "max_tokens": 16, "temperature": 1.5, **more}


def texts(answer: Json) -> list[str]:
    return [each["text"] for each in answer["answers"]]


def streamed(chunks: list[Json], n: int) -> list[str]:
    return ["".join(chunk["text"] for chunk in chunks if chunk["index"] == index) for index in range(n)]


def alone(params: Json, index: int) -> Json:
    """Return the params of one of the answers."""
    return {**params, "n": 1, "seed": params["seed"] + index}


def test_each_answer_is_the_one_of_its_seed_streamed_and_whole(small: RawClient) -> None:
    whole = small.result("infer", several())
    assert set(whole) == {"answers", "model", "usage", "timings", "seed", "fingerprint"}
    assert (whole["seed"], len(set(texts(whole))) > 1) == (5, True)
    assert [each["finish_reason"] for each in whole["answers"]] == ["length"] * 4
    chunks, response = small.stream(several())
    assert streamed(chunks, 4) == texts(whole)
    assert [chunk["seq"] for chunk in chunks] == list(range(response["result"]["chunks"]))
    assert response["result"]["answers"] == [{"finish_reason": "length"}] * 4
    for index in range(4):
        answer = small.result("infer", alone(several(), index))
        assert (answer["text"], answer["seed"]) == (texts(whole)[index], 5 + index)
        assert "answers" not in answer


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "cached"), [("1", True), ("2", True), ("8", True), ("2", False)])
def test_the_prompt_is_computed_once_also_where_sequences_come_free_later(
    start: Start, capacity: str, cached: bool
) -> None:
    daemon = start("--capacity", capacity)
    with daemon.ready().connect() as client:
        params = several(40, cache_prompt=cached)
        usage = client.result("infer", params)["usage"]
        tokens = usage["prompt_tokens"]
        assert tokens > 400
        assert (usage["cached_tokens"], usage["completion_tokens"]) == (0, 4 * 16)
        # Each of the others computes its last token alone.
        until_cached(client, 3 * (tokens - 1))
        again = client.result("infer", {**params, "n": 1})["usage"]
        assert again["cached_tokens"] == (tokens - 1 if cached else 0)


def until_cached(client: RawClient, tokens: int) -> None:
    """Return once the engine's counter says that it did not compute so many prompt tokens in all."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := client.result("daemon/status")["models"][0]["engines"][0]["cached_tokens"]) != tokens:
        assert found < tokens
        assert time.monotonic() < deadline, (found, tokens)


def test_one_answer_is_as_without(small: RawClient) -> None:
    one, without = (small.result("infer", several(**more)) for more in ({"n": 1}, {"n": 1}))
    assert set(one) == set(without) == {"text", "finish_reason", "model", "usage", "timings", "seed", "fingerprint"}
    params = several()
    del params["n"]
    assert small.result("infer", params)["text"] == one["text"]
    chunks, _ = small.stream(several(n=1))
    assert not any("index" in chunk for chunk in chunks)


@pytest.mark.parametrize("n", [0, 9, -1, 1.5, "2", None, True])
def test_a_number_of_answers_out_of_range_is_refused_by_its_name(small: RawClient, n: object) -> None:
    error = small.call("infer", several(n=n))["error"]
    assert (error["code"], error["data"]["param"]) == (-32602, "n")


def test_each_answer_has_its_own_logprobs_tokens_and_stop(small: RawClient) -> None:
    answer = small.result("infer", several(logprobs=1, return_tokens=True, stop=["e"], max_tokens=200))
    for each in answer["answers"]:
        assert len(each["tokens"]) == len(each["logprobs"])
        assert "e" not in each["text"]
        assert each.get("stop") == ("e" if each["finish_reason"] == "stop" and "stop" in each else None)
    assert sum(len(each["tokens"]) for each in answer["answers"]) == answer["usage"]["completion_tokens"]


def test_a_schema_binds_every_answer(small: RawClient) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2, 3, 4]}}, "required": ["a"]}
    answer = small.result("infer", several(json_schema=schema, max_tokens=60, temperature=5))
    assert {json.loads(text)["a"] for text in texts(answer)} <= {1, 2, 3, 4}


def test_reproducible_answers_are_those_of_their_seeds_alone(small: RawClient) -> None:
    params = several(reproducible=True)
    answers = texts(small.result("infer", params))
    assert answers == texts(small.result("infer", params))
    assert answers == [small.result("infer", alone(params, index))["text"] for index in range(4)]


def test_a_conversation_has_several_answers(small: RawClient) -> None:
    params = {"messages": conversation("How do I cancel a request?"), "n": 3, "max_tokens": 8}
    assert len(small.result("infer", params)["answers"]) == 3


def test_a_cancellation_ends_all_answers_with_one_error(small: RawClient, small_daemon: Daemon) -> None:
    stream = small.send("infer_stream", endless(n=4))
    small.first_chunk(stream)
    small.notify("$/cancelRequest", {"id": stream})
    error = small.response(stream)["error"]
    assert (error["data"]["reason"], error["data"]["started"]) == ("cancelled", True)
    small_daemon.wait_until_idle()
    assert small.result("inference/capacity")["queued"] == 0


def test_a_deadline_ends_all_answers_and_keeps_their_beginnings(small: RawClient) -> None:
    hundred_ms = round(small.result("infer", endless(max_tokens=100))["timings"]["total_ms"])
    answer = small.result("infer", endless(n=3, timeout_ms=600 + hundred_ms))
    assert [each["finish_reason"] for each in answer["answers"]] == ["deadline"] * 3
    assert answer["answers"][0]["text"]
    assert answer["answers"][2]["text"] == ""
    # A prompt of a thousand new tokens takes tens of milliseconds; a short prompt may have its first token within one.
    long = several(80, n=3, timeout_ms=1)
    error = small.call("infer", {**long, "prompt": f"No other test begins so. {long['prompt']}"})["error"]
    assert (error["code"], error["data"]["started"]) == (1002, False)


@pytest.mark.slow
def test_urgent_work_parks_one_of_the_answers_and_changes_none(small: RawClient, small_daemon: Daemon) -> None:
    params = several(max_tokens=300, ignore_eos=True, temperature=0, priority="throughput", n=2)
    expected = texts(small.result("infer", params))
    with small_daemon.connect() as other:
        stream = small.send("infer_stream", params)
        chunks = [small.first_chunk(stream)]
        assert other.result("infer", {"prompt": "Hi", "max_tokens": 3})["usage"]["completion_tokens"] == 3
    while "params" in (message := small.receive()):
        chunks.append(message["params"])
    assert streamed(chunks, 2) == expected


@pytest.mark.slow
def test_a_client_that_does_not_read_has_all_answers_when_it_reads(small: RawClient, small_daemon: Daemon) -> None:
    params = endless(n=4, max_tokens=600, logprobs=20, temperature=0)
    with small_daemon.connect() as other:
        stream = small.send("infer_stream", params)
        until(other, in_use=0, parked=4)
    chunks = []
    while "params" in (message := small.receive()):
        chunks.append(message["params"])
    assert (message["id"], message["result"]["chunks"]) == (stream, len(chunks))
    for index in range(4):
        assert sum(len(chunk["logprobs"]) for chunk in chunks if chunk["index"] == index) == 600
    assert len(chunks) < 2400


@pytest.mark.slow
def test_answers_whose_engine_dies_run_again_or_are_lost_together(start: Start) -> None:
    daemon = start("--capacity", "2").ready()
    params = several(max_tokens=300, ignore_eos=True, temperature=0)
    with daemon.connect() as client, daemon.connect() as other:
        expected = texts(client.result("infer", params))
        whole = client.send("infer", params)
        while not any(each["phase"] == "decode" for each in other.result("daemon/status")["sequences"]):
            pass
        daemon.engine().send_signal(signal.SIGKILL)
        assert texts(client.response(whole)["result"]) == expected
        stream = client.send("infer_stream", params)
        client.first_chunk(stream)
        daemon.engine().send_signal(signal.SIGKILL)
        error = client.response(stream)["error"]
        assert (error["data"]["reason"], error["data"]["started"]) == ("engine_lost", True)
        assert len(client.result("infer", several())["answers"]) == 4


async def test_both_clients_and_carctl_have_several_answers(daemon: Daemon) -> None:
    params = several(n=3)
    with Client(daemon.path) as client:
        whole = client.infer(**params)
        stream = client.infer_stream(**params)
        chunks = list(stream)
    assert whole.answers is not None
    assert (whole.text, whole.finish_reason) == ("", None)
    assert {chunk.index for chunk in chunks} == {0, 1, 2}
    assert stream.answer is not None
    assert stream.answer.answers == whole.answers
    async with AsyncClient(daemon.path) as asynchronous:
        assert (await asynchronous.infer(**params)).answers == whole.answers
        pieces = asynchronous.infer_stream(**params)
        assert {chunk.index async for chunk in pieces} == {0, 1, 2}
        assert pieces.answer is not None
        assert pieces.answer.answers == whole.answers
    options = ["--raw", "--max-tokens", "16", "--temperature", "1.5", "--seed", "5", "-n", "3"]
    printed = await asyncio.to_thread(carctl, daemon, "infer", params["prompt"], *options)
    assert printed == "".join(
        f"--- answer {number} of 3, seed {4 + number} ---\n{each.text.rstrip(chr(10))}\n"
        for number, each in enumerate(whole.answers, 1)
    )
