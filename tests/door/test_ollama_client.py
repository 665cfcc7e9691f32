"""Ollama's Python client, unmodified, over a loopback port and over the Unix socket."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER, details, model
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
    (listed,) = client.list().models
    assert (listed.model, listed.details.family, listed.details.quantization_level) == ("guide:latest", "llama", "Q8_0")
    assert [model.model for model in client.ps().models] == ["guide:latest"]
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


def test_models_are_pulled_named_and_deleted_if_card_toml_has_them(client: Any) -> None:
    assert client.pull("guide").status == "success"
    assert [line.status for line in client.pull("guide", stream=True)] == ["success"]
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: client.pull("mystery:7b"), "hf.co/OWNER/REPO"),
        (lambda: list(client.pull("mystery:7b", stream=True)), "hf.co/OWNER/REPO"),
        (lambda: client.copy("guide", "other"), "only its models are changed"),
        (lambda: client.create("other", from_="guide"), "only its models are changed"),
        (lambda: client.delete("guide"), "only its models are changed"),
        (lambda: client.delete("nothing"), "not found"),
        (lambda: client.push("guide"), "sends no models away"),
        (lambda: client.create_blob(__file__), "carctl models add PATH"),
    ]
    for change, why in refused:
        with pytest.raises(ollama.ResponseError, match=why):
            change()


def test_tokens_have_log_probabilities(client: Any) -> None:
    answer = client.generate(
        model="guide", prompt="A daemon", raw=True, logprobs=True, top_logprobs=2, options={**GREEDY, "num_predict": 2}
    )
    assert [(len(each.top_logprobs), each.logprob <= 0) for each in answer.logprobs] == [(2, True)] * 2


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
        ("/api/generate", {"model": "guide", "prompt": "x", "keep_alive": "soon"}, "keep_alive"),
        ("/api/generate", {"model": "guide", "prompt": "x", "keep_alive": "1" * 9999 + "x"}, "keep_alive"),
        ("/api/generate", {"model": "guide", "prompt": "x", "keep_alive": "1h5"}, "keep_alive"),
        ("/api/generate", {"model": "guide", "prompt": "x", "template": "{{ .Prompt }}"}, "template"),
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


async def test_a_request_without_a_prompt_loads_the_model_or_with_keep_alive_0_unloads_it(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    cold = {"models": [model() | {"state": "unloaded"}]}
    fake.answers |= {"models/list": cold, "models/load": model(), "models/unload": model()}
    for path in ("/api/generate", "/api/chat"):
        answer = await offline.post(path, {"model": "guide:latest", "keep_alive": -1})
        assert (answer.status, answer.json["done_reason"]) == (200, "load")
        assert fake.params("models/load") == {"model": "guide"}
    fake.answers["models/list"] = {"models": [model()]}
    answer = await offline.post("/api/generate", {"model": "guide", "keep_alive": "0s"})
    assert (answer.status, answer.json["done_reason"]) == (200, "unload")
    assert fake.params("models/unload") == {"model": "guide"}
    moves = len(fake.calls)
    assert (await offline.post("/api/generate", {"model": "other", "keep_alive": 0})).json["model"] == "guide"
    assert not [call for call in fake.calls[moves:] if call.method in ("models/load", "models/unload")]


@pytest.mark.parametrize(("in_use", "unloaded"), [(1, False), (0, True)])
async def test_keep_alive_0_unloads_a_model_after_its_answer_if_no_other_request_uses_it(
    offline: OfflineDoor, fake: FakeDaemon, in_use: int, unloaded: bool
) -> None:
    fake.answers["models/unload"] = model()
    fake.capacity_members = {"in_use": in_use, "queued": 0}
    body = {"model": "guide", "prompt": "Hi", "keep_alive": 0, "stream": False}
    assert (await offline.post("/api/generate", body)).json["response"] == "Hello"
    assert ("models/unload" in [call.method for call in fake.calls]) == unloaded


async def test_members_without_effect_are_named_in_the_answer(offline: OfflineDoor) -> None:
    body = {"model": "guide", "prompt": "Hi", "context": [1, 2], "keep_alive": -1}
    assert (await offline.post("/api/generate", body)).lines[-1]["card"]["left_out"] == ["keep_alive", "context"]
    assert (
        "left_out"
        not in (await offline.post("/api/generate", body | {"context": [], "keep_alive": "5m"})).lines[-1]["card"]
    )


async def test_a_raw_prompt_has_its_template_written_out(offline: OfflineDoor, fake: FakeDaemon) -> None:
    body = {"model": "guide", "prompt": "<|im_start|>user", "raw": True}
    assert (await offline.post("/api/generate", body)).status == 200
    assert fake.params("infer_stream")["parse_special"]


@pytest.mark.parametrize(
    ("think", "sent"),
    [
        (True, {"reasoning": "on"}),
        (False, {"reasoning": "off"}),
        ("none", {"reasoning": "off", "template_args": {"reasoning_effort": "none"}}),
        ("low", {"reasoning": "on", "template_args": {"reasoning_effort": "low"}, "reasoning_tokens": 1024}),
        ("high", {"reasoning": "on", "template_args": {"reasoning_effort": "high"}}),
    ],
)
async def test_thoughts_have_levels(offline: OfflineDoor, fake: FakeDaemon, think: Any, sent: dict[str, Any]) -> None:
    fake.answers["models/list"] = {"models": [model(can=("chat", "thinking"))]}
    assert (await offline.post("/api/generate", {"model": "guide", "prompt": "Hi", "think": think})).status == 200
    kept = {name: fake.params("infer_stream").get(name) for name in ("reasoning", "template_args", "reasoning_tokens")}
    assert {name: value for name, value in kept.items() if value is not None} == sent


async def test_names_have_tags_and_each_alias_is_listed(offline: OfflineDoor, fake: FakeDaemon) -> None:
    named = model(name="llama3.2:3b") | {"aliases": ["writer", "hf.co/owner/repo:Q4_K_M"]}
    tagless = model() | {"aliases": ["smol:latest"], "state": "unloaded"}
    fake.answers["models/list"] = {"models": [named, tagless]}
    listed = (await offline.get("/api/tags")).json["models"]
    names = ["llama3.2:3b", "writer:latest", "hf.co/owner/repo:Q4_K_M", "guide:latest", "smol:latest"]
    assert [each["name"] for each in listed] == [each["model"] for each in listed] == names
    assert listed[0]["details"]["quantization_level"] == "Q4_K_M"
    assert [each["name"] for each in (await offline.get("/api/ps")).json["models"]] == ["llama3.2:3b"]
    body = {"prompt": "Hi", "stream": False}
    for name, sent in [
        ("writer:latest", "llama3.2:3b"),
        ("smol", "guide"),
        ("guide:latest", "guide"),
        ("writer", "writer"),
    ]:
        answer = await offline.post("/api/generate", body | {"model": name})
        assert (answer.json["model"], fake.params("infer")["model"]) == (name, sent)
    await offline.post("/v1/chat/completions", {"model": "smol", "messages": conversation("Hi")})
    assert fake.params("infer")["model"] == "guide"
    assert (await offline.post("/api/show", {"model": "writer:latest"})).status == 200
    assert fake.params("models/show") == {"model": "llama3.2:3b"}


async def test_a_model_is_shown_with_its_modelfile(offline: OfflineDoor, fake: FakeDaemon) -> None:
    shown = details()
    shown["model"]["defaults"] = {"temperature": 0.5, "max_tokens": 9, "system": "Be brief."}
    fake.answers["models/show"] = shown
    answer = (await offline.post("/api/show", {"name": "guide"})).json
    assert answer["system"] == "Be brief."
    assert [line.split() for line in answer["parameters"].splitlines()] == [
        ["temperature", "0.5"],
        ["num_predict", "9"],
    ]
    assert answer["modelfile"].startswith("FROM guide.gguf\nTEMPLATE")
    assert 'SYSTEM """Be brief."""' in answer["modelfile"]


async def test_what_asks_for_nothing_is_answered(offline: OfflineDoor) -> None:
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
