"""OpenAI's Responses, by its own client."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import DoorProcess, OfflineDoor
from tests.door.test_openai_client import PIECES, PNG, SHORT, SOUND, connected

openai = pytest.importorskip("openai")
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(params=["port", "socket"])
def client(request: pytest.FixtureRequest, door: DoorProcess) -> Iterator[Any]:
    """A client of the door before the real daemon."""
    with connected(door, request.param, max_retries=0) as client:
        yield client


def test_a_response_is_answered(client: Any) -> None:
    answer = client.responses.create(model="guide", input=SHORT.question, temperature=0)
    assert answer.output_text == SHORT.answer
    assert answer.status == "completed"
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_response_has_every_member_that_the_official_type_requires(client: Any) -> None:
    raw = client.responses.with_raw_response.create(model="guide", input=SHORT.question, temperature=0)
    answer = openai.types.responses.Response.model_validate_json(raw.content)
    assert answer.usage.input_tokens_details.cache_write_tokens == 0


def test_every_streaming_event_comes_in_order(client: Any) -> None:
    with client.responses.stream(model="guide", input=SHORT.question, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 1
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == SHORT.answer


def test_a_limit_leaves_the_response_incomplete(client: Any) -> None:
    answer = client.responses.create(model="guide", input=SHORT.question, max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in answer.output] == ["incomplete"]


def test_a_response_follows_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"figure": {"enum": [7]}}, "required": ["figure"]}
    form = {"format": {"type": "json_schema", "name": "seven", "schema": schema, "strict": True}}
    assert json.loads(client.responses.create(model="guide", input="Seven?", text=form).output_text) == {"figure": 7}


async def test_thoughts_text_and_calls_are_items_of_their_own(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.pieces = [{"reasoning": "Hm"}, {"reasoning": "."}, {"text": "Let me see."}, {"tool_calls": PIECES}]
    body = {"model": "guide", "input": "Hi", "tools": [WEATHER], "stream": True}
    events = (await offline.post("/v1/responses", body)).events
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    thoughts, message, call = events[-1]["response"]["output"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Let me see."
    assert (call["call_id"], call["arguments"]) == ("call_1", '{"place":"Vienna"}')


async def test_a_custom_tool_has_free_text_in_both_directions(offline: OfflineDoor, fake: FakeDaemon) -> None:
    arguments = json.dumps({"input": "*** Begin Patch"})
    call = {"id": "call_1", "type": "function", "function": {"name": "apply_patch", "arguments": arguments}}
    fake.answers["infer"] = ANSWER | {"text": "", "tool_calls": [call]}
    tools = [{"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}}]
    first = (await offline.post("/v1/responses", {"model": "guide", "input": "Hi", "tools": tools})).json
    (item,) = first["output"]
    fake.pieces = [{"tool_calls": [{"index": 0, "id": "c", "name": "apply_patch", "arguments": arguments[:9]}]}]
    fake.pieces += [{"tool_calls": [{"index": 0, "arguments": arguments[9:]}]}]
    body = {"model": "guide", "input": "Hi", "tools": tools, "stream": True}
    events = (await offline.post("/v1/responses", body)).events
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == ["*** Begin Patch"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin Patch")
    output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}
    conversation = [{"role": "user", "content": "Hi"}, item, output]
    assert (
        await offline.post("/v1/responses", {"model": "guide", "input": conversation, "tools": tools})
    ).status == 200
    sent = fake.params("infer")["messages"]
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"input": "*** Begin Patch"}
    assert sent[2] == {"role": "tool", "content": "done", "tool_call_id": "call_1"}


FILES: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "The files of the project.",
    "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "patch", "description": "Changes a file."},
    ],
}


def function_call(name: str, arguments: str) -> dict[str, Any]:
    """Return a call as the daemon has it."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_tools_in_namespaces_are_offered_under_both_names(offline: OfflineDoor, fake: FakeDaemon) -> None:
    choice = {"type": "function", "namespace": "mcp__files", "name": "read"}
    body = {"model": "guide", "input": "Hi", "tools": [WEATHER, FILES], "tool_choice": choice}
    assert (await offline.post("/v1/responses", body)).status == 200
    sent = fake.params("infer")
    offered = [(tool["function"]["name"], tool["function"].get("description")) for tool in sent["tools"]]
    assert offered == [
        ("weather", None),
        ("mcp__files__read", "The files of the project."),
        ("mcp__files__patch", "Changes a file."),
    ]
    assert sent["tool_choice"] == {"name": "mcp__files__read"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_a_tool_in_a_namespace_names_both_and_comes_back_with_them(
    offline: OfflineDoor, fake: FakeDaemon, stream: bool
) -> None:
    patch = json.dumps({"input": "*** Begin"})
    calls = [function_call("mcp__files__read", "{}"), function_call("mcp__files__patch", patch)]
    fake.answers["infer"] = ANSWER | {"text": "", "tool_calls": calls}
    fake.pieces = [
        {"tool_calls": [{"index": index, "id": call["id"], **call["function"]}]} for index, call in enumerate(calls)
    ]
    body = {"model": "guide", "input": "Hi", "tools": [FILES], "stream": stream}
    answer = await offline.post("/v1/responses", body)
    items = (answer.events[-1]["response"] if stream else answer.json)["output"]
    named = [(item["type"], item["namespace"], item["name"]) for item in items]
    assert named == [("function_call", "mcp__files", "read"), ("custom_tool_call", "mcp__files", "patch")]
    assert items[1]["input"] == "*** Begin"
    await offline.post("/v1/responses", {"model": "guide", "input": [*items, {"role": "user", "content": "Go on"}]})
    again = fake.params("infer")["messages"][0]["tool_calls"]
    assert [call["function"]["name"] for call in again] == ["mcp__files__read", "mcp__files__patch"]


async def test_an_answer_repeats_tools_and_form_as_they_came(offline: OfflineDoor) -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    choice = {"type": "function", "name": "weather"}
    more = {"tools": [WEATHER, FILES], "tool_choice": choice, "text": {"format": schema}}
    answer = (await offline.post("/v1/responses", {"model": "guide", "input": "Hi", **more})).json
    assert {name: answer[name] for name in more} == more


async def test_a_long_name_in_a_namespace_is_cut_to_one_that_the_daemon_takes(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    tools = [{"type": "function", "name": "n" * 60 + end} for end in "ab"]
    body = {"model": "guide", "input": "Hi", "tools": [{"type": "namespace", "name": "space", "tools": tools}]}
    await offline.post("/v1/responses", body)
    names = [tool["function"]["name"] for tool in fake.params("infer")["tools"]]
    assert [len(name) for name in names] == [64, 64]
    assert names[0] != names[1]
    fake.answers["infer"] = ANSWER | {"text": "", "tool_calls": [function_call(names[1], "{}")]}
    (item,) = (await offline.post("/v1/responses", body)).json["output"]
    assert (item["namespace"], item["name"]) == ("space", "n" * 60 + "b")


async def test_the_items_of_one_turn_are_one_message(offline: OfflineDoor, fake: FakeDaemon) -> None:
    conversation = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "message", "role": "assistant", "content": "Both."},
        {"type": "message", "role": "assistant", "content": "Indeed."},
    ]
    body = {"model": "guide", "instructions": "Answer.", "input": conversation, "tools": [WEATHER]}
    assert (await offline.post("/v1/responses", body)).status == 200
    sent = fake.params("infer")["messages"]
    roles = ["system", "system", "user", "assistant", "tool", "tool", "assistant", "assistant"]
    assert [turn["role"] for turn in sent] == roles
    assert (sent[3]["reasoning"], sent[3]["content"]) == ("Hm.", "Let me see.")
    assert [call["id"] for call in sent[3]["tool_calls"]] == ["c1", "c2"]


async def test_a_sound_of_the_official_type_is_sent_on(offline: OfflineDoor, fake: FakeDaemon) -> None:
    sound = {"data": SOUND, "format": "wav"}
    part = openai.types.responses.ResponseInputAudioParam(type="input_audio", input_audio=sound)
    turn = {"role": "user", "content": [{"type": "input_text", "text": "What do you hear?"}, part]}
    assert (await offline.post("/v1/responses", {"model": "guide", "input": [turn]})).status == 200
    assert fake.params("infer")["messages"][0]["content"][1] == {"type": "audio", "data": SOUND}
    sound["format"] = "mp4"
    answer = await offline.post("/v1/responses", {"model": "guide", "input": [turn]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].content[1].input_audio")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [WEATHER, {"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]}, "tools[1].tools[0]"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": {}}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format"),
        ({"tools": [{"type": "namespace", "tools": [WEATHER]}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
    ],
)
async def test_members_that_would_change_the_answer_are_refused(
    offline: OfflineDoor, more: dict[str, Any], param: str
) -> None:
    answer = await offline.post("/v1/responses", {"model": "guide", "input": "Hi", **more})
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_a_stream_that_fails_ends_with_the_failed_response(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.silent_after = 1
    async with offline.posting("/v1/responses", {"model": "guide", "input": "Hi", "stream": True}) as answer:
        fake.drop()
    assert answer.events[-1]["type"] == "response.failed"
    assert answer.events[-1]["response"]["error"]["code"] == "daemon_unavailable"
    assert (await offline.get("/v1/responses/resp_1")).status == 404
