"""Ollama's Python client, unmodified, over a loopback port and over the Unix socket."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import DoorProcess, OfflineDoor
from tests.door.test_openai_client import CALL, PIECES, PNG, SHORT, WEATHER
from tests.e2e.support import conversation

ollama = pytest.importorskip("ollama")
httpx = pytest.importorskip("httpx")
GREEDY = {"temperature": 0, "num_ctx": 2048, "num_gpu": 99}


@pytest.fixture(params=["port", "socket"])
def client(request: pytest.FixtureRequest, door: DoorProcess) -> Iterator[Any]:
    """A client of the door before the real daemon."""
    if request.param == "port":
        made = ollama.Client(host=door.url, headers={"Authorization": f"Bearer {door.key}"})
    else:
        made = ollama.Client(host="http://card", transport=httpx.HTTPTransport(uds=str(door.socket)))
    yield made
    made._client.close()


def test_a_chat_is_answered_whole_and_in_lines(client: Any) -> None:
    request: dict[str, Any] = {"model": "guide", "messages": conversation(SHORT.question), "options": GREEDY}
    whole = client.chat(**request, keep_alive=-1)
    assert whole.message.content == SHORT.answer
    assert (whole.done_reason, whole.eval_count > 0, whole.total_duration > 0) == ("stop", True, True)
    lines = list(client.chat(**request, stream=True, keep_alive="5m"))
    assert "".join(line.message.content for line in lines) == SHORT.answer
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]


def test_a_prompt_is_answered(client: Any) -> None:
    answer = client.generate(model="guide:latest", prompt=SHORT.question, options=GREEDY)
    assert answer.response == SHORT.answer
    raw = client.generate(model="guide", prompt="A daemon", raw=True, options={**GREEDY, "num_predict": 3})
    assert (raw.done_reason, raw.eval_count) == ("length", 3)


def test_an_answer_follows_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"figure": {"enum": [7]}}, "required": ["figure"]}
    answer = client.chat(model="guide", messages=conversation("Seven?"), format=schema)
    assert json.loads(answer.message.content) == {"figure": 7}
    answer = client.chat(model="guide", messages=conversation("Seven?"), format="json", options={"num_predict": 200})
    assert answer.message.content.startswith("{")


def test_models_are_found_with_their_abilities(client: Any) -> None:
    assert [model.model for model in client.list().models] == ["guide"]
    assert [model.model for model in client.ps().models] == ["guide"]
    shown = client.show("guide")
    assert shown.capabilities == ["completion", "embedding"]
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == 4096


def test_texts_are_embedded(client: Any) -> None:
    found = client.embed(model="guide", input=["one", "two"])
    assert len(found.embeddings) == 2
    assert list(client.embeddings(model="guide", prompt="one").embedding) == pytest.approx(found.embeddings[0])


def test_errors_have_their_status(client: Any) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("other")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        list(client.chat(model="guide", messages=conversation("word " * 6000), stream=True))


def test_models_are_not_changed_by_the_client(client: Any) -> None:
    for change in (client.pull, client.delete, client.push):
        with pytest.raises(ollama.ResponseError, match="carctl models pull") as caught:
            change("guide")
        assert caught.value.status_code == 404


@pytest.mark.parametrize("more", [{"raw": True}, {"suffix": "b"}])
async def test_images_beside_a_raw_prompt_are_refused(offline: OfflineDoor, more: dict[str, Any]) -> None:
    answer = await offline.post("/api/generate", {"model": "guide", "prompt": "a", "images": [PNG], **more})
    assert answer.status == 400
    assert answer.json["error"].startswith("images: ")


async def test_calls_are_whole_in_lines(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.pieces = [{"reasoning": "Hm."}, *[{"tool_calls": [piece]} for piece in PIECES]]
    fake.pieces += [{"tool_calls": [{"index": 1, "id": "call_2", "name": "weather", "arguments": "{}"}]}]
    body = {"model": "guide", "messages": conversation("Hi"), "tools": [WEATHER]}
    lines = (await offline.post("/api/chat", body)).lines
    assert lines[0]["message"]["thinking"] == "Hm."
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert [call["function"]["arguments"] for call in calls] == [{"place": "Vienna"}, {}]
    assert lines[-1]["done"]


async def test_a_second_turn_carries_calls_and_results(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = ANSWER | {"text": "", "tool_calls": [CALL]}
    body: dict[str, Any] = {"model": "guide", "stream": False, "think": False, "tools": [WEATHER]}
    first = (await offline.post("/api/chat", body | {"messages": conversation("Hi")})).json["message"]
    assert first["tool_calls"][0]["function"]["arguments"] == {"place": "Vienna"}
    del first["tool_calls"][0]["id"]
    turns = [
        {"role": "user", "content": "What is it?", "images": [PNG]},
        first,
        {"role": "tool", "content": "sunny", "tool_name": "weather"},
    ]
    assert (await offline.post("/api/chat", body | {"messages": turns})).status == 200
    sent = fake.params("infer")
    assert sent["reasoning"] == "off"
    assert sent["messages"][0]["content"][0] == {"type": "image", "data": PNG}
    assert sent["messages"][1]["tool_calls"][0]["id"] == sent["messages"][2]["tool_call_id"] == "call_0"
    assert sent["messages"][2]["name"] == "weather"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/api/chat", {"messages": []}, "model"),
        ("/api/generate", {"model": "guide", "prompt": "x", "context": [1]}, "context"),
        ("/api/generate", {"model": "guide", "prompt": "x", "format": "xml"}, "format"),
        ("/api/embed", {"model": "guide", "input": [1]}, "input"),
        ("/api/show", {}, "model"),
        ("/api/chat", {"model": "guide", "messages": [{"role": 1}]}, "role"),
    ],
)
async def test_errors_have_the_shape_of_the_dialect(
    offline: OfflineDoor, path: str, body: dict[str, Any], expected: str
) -> None:
    answer = await offline.post(path, body)
    assert answer.status == 400
    assert expected in answer.json["error"]


async def test_a_request_without_a_prompt_loads_nothing_and_succeeds(offline: OfflineDoor) -> None:
    answer = await offline.post("/api/generate", {"model": "guide", "keep_alive": 0})
    assert (answer.status, answer.json["done_reason"]) == (200, "load")
    assert (await offline.post("/api/generate", {"model": "other"})).json["model"] == "guide"
    assert (await offline.get("/")).body == b"card is running"
    assert (await offline.request("HEAD", "/", b"", {})).status == 200
    version = (await offline.get("/api/version")).json["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]


async def test_a_stream_that_fails_ends_with_an_error_line(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.silent_after = 1
    body = {"model": "guide", "messages": conversation("Hi")}
    async with offline.posting("/api/chat", body) as answer:
        fake.drop()
    assert "lost" in answer.lines[-1]["error"]
