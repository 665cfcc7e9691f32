"""A call that was cut is text in every dialect, streamed and whole; calls go out once they are whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_client.results import Answer, Chunk, ToolCallDelta, joined
from car_http.dialects.whole_calls import WholeCalls, without_cut_call
from car_protocol.answer import Timings, Usage
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import OfflineDoor

ARGUMENTS = '{"place":"Vienna","days":[1,2]}'
FUNCTION = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}
CHAT = {"model": "guide", "messages": [{"role": "user", "content": "Hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | {"tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/responses": {"model": "guide", "input": "Hi", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": CHAT | {"max_tokens": 9, "tools": [{"name": "weather", "input_schema": {"type": "object"}}]},
    "/api/chat": CHAT | {"tools": [{"type": "function", "function": FUNCTION}]},
}


def call(number: int, arguments: str, invalid: str | None = None) -> dict[str, Any]:
    found = {"id": f"call_{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return found | ({"invalid": invalid} if invalid else {})


def pieces_of(number: int, arguments: str, invalid: str | None = None) -> list[dict[str, Any]]:
    pieces: list[dict[str, Any]] = [{"index": number, "id": f"call_{number}", "name": "weather"}]
    pieces += [{"index": number, "arguments": each} for each in arguments]
    return [{"tool_calls": [each]} for each in [*pieces, *([{"index": number, "invalid": invalid}] if invalid else [])]]


def whole_of(path: str, body: Any) -> tuple[str, list[tuple[str, str]], str]:
    """Return the text, the calls' ids and arguments, and the reason of the end of a whole answer."""
    if path == "/v1/chat/completions":
        (choice,) = body["choices"]
        calls = [(each["id"], each["function"]["arguments"]) for each in choice["message"].get("tool_calls", [])]
        return choice["message"]["content"] or "", calls, choice["finish_reason"]
    if path == "/v1/responses":
        texts = [each["content"][0]["text"] for each in body["output"] if each["type"] == "message"]
        calls = [(each["call_id"], each["arguments"]) for each in body["output"] if each["type"] == "function_call"]
        return "".join(texts), calls, body["status"]
    if path == "/v1/messages":
        texts = [each["text"] for each in body["content"] if each["type"] == "text"]
        calls = [(each["id"], _compact(each["input"])) for each in body["content"] if each["type"] == "tool_use"]
        return "".join(texts), calls, body["stop_reason"]
    calls = [(each["id"], _compact(each["function"]["arguments"])) for each in body["message"].get("tool_calls", [])]
    return body["message"]["content"], calls, body["done_reason"]


def streamed_of(path: str, events: list[Any]) -> tuple[str, list[tuple[str, str]], str]:
    """Return the same of a stream, put together as clients do."""
    if path == "/v1/chat/completions":
        choices = [choice for event in events if isinstance(event, dict) for choice in event["choices"]]
        calls = [each for choice in choices for each in choice["delta"].get("tool_calls", [])]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        found = [(each["id"], each["function"]["arguments"]) for each in calls]
        return text, found, choices[-1]["finish_reason"]
    if path == "/v1/responses":
        return whole_of(path, events[-1]["response"])
    if path == "/v1/messages":
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        for event in events:
            if event["type"] == "content_block_delta" and "partial_json" in event["delta"]:
                blocks[event["index"]]["input"] = json.loads(event["delta"]["partial_json"] or "{}")
            elif event["type"] == "content_block_delta" and "text" in event["delta"]:
                blocks[event["index"]]["text"] += event["delta"]["text"]
        (last,) = [event["delta"] for event in events if event["type"] == "message_delta"]
        return whole_of(path, {"content": blocks, **last})
    text = "".join(event["message"]["content"] for event in events)
    calls = [each for event in events for each in event["message"].get("tool_calls", [])]
    message = {"content": text, "tool_calls": calls}
    return whole_of(path, {"message": message, "done_reason": events[-1]["done_reason"]})


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


async def both(
    door: OfflineDoor, fake: FakeDaemon, path: str, calls: list[tuple[int, str, str | None]], **ending: Any
) -> tuple[Any, Any]:
    """Return what clients read of the same answer, whole and streamed."""
    fake.answers["infer"] = ANSWER | {"text": "I see. ", "tool_calls": [call(*each) for each in calls]} | ending
    fake.pieces = ["I ", "see. ", *(piece for each in calls for piece in pieces_of(*each))]
    fake.ending = ending
    whole = await door.post(path, BODIES[path] | {"stream": False})
    streamed = await door.post(path, BODIES[path] | {"stream": True})
    events = streamed.lines if path.startswith("/api/") else streamed.events
    return whole_of(path, whole.json), streamed_of(path, events)


LIMITED = {
    "/v1/chat/completions": "length",
    "/v1/responses": "incomplete",
    "/v1/messages": "max_tokens",
    "/api/chat": "length",
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("kept", ["", '{"place":"Vi', '{"place":"Vienna","days":[1,2]'])
@pytest.mark.parametrize("invalid", ["arguments", "name"])
async def test_a_call_that_a_limit_cut_is_text_and_no_call_streamed_as_whole(
    offline: OfflineDoor, fake: FakeDaemon, path: str, kept: str, invalid: str
) -> None:
    calls = [(0, ARGUMENTS, None), (1, kept, invalid)]
    whole, streamed = await both(offline, fake, path, calls, finish_reason="length")
    text = 'I see. {"name": "weather", "arguments": ' + kept
    assert whole == streamed == (text, [("call_0", ARGUMENTS)], LIMITED[path])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("end", [{"finish_reason": "deadline"}, {"finish_reason": "stop", "stop": "]"}])
async def test_a_call_that_a_deadline_or_a_stop_string_cut_is_text_too(
    offline: OfflineDoor, fake: FakeDaemon, path: str, end: dict[str, Any]
) -> None:
    whole, streamed = await both(offline, fake, path, [(0, ARGUMENTS[:-2], "arguments")], **end)
    assert whole == streamed
    assert whole[1] == []
    assert whole[0].endswith(ARGUMENTS[:-2])


@pytest.mark.parametrize("path", BODIES)
async def test_a_call_that_is_whole_when_the_limit_comes_is_a_call(
    offline: OfflineDoor, fake: FakeDaemon, path: str
) -> None:
    whole, streamed = await both(offline, fake, path, [(0, ARGUMENTS, None)], finish_reason="length")
    assert whole == streamed == ("I see. ", [("call_0", ARGUMENTS)], LIMITED[path])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_call_that_the_model_wrote_wrongly_to_its_end_is_sent_as_it_is(
    offline: OfflineDoor, fake: FakeDaemon, path: str
) -> None:
    whole, streamed = await both(offline, fake, path, [(0, "Vienna", "arguments")], finish_reason="stop")
    assert whole == streamed
    assert whole[1] == [("call_0", "Vienna")]


@pytest.mark.parametrize("path", ["/v1/messages", "/api/chat"])
@pytest.mark.parametrize("arguments", ["Vienna", '{"place": oh}'])
async def test_arguments_that_are_no_object_stand_in_one_if_a_dialect_has_objects_alone(
    offline: OfflineDoor, fake: FakeDaemon, path: str, arguments: str
) -> None:
    whole, streamed = await both(offline, fake, path, [(0, arguments, "arguments")], finish_reason="stop")
    assert whole == streamed
    assert whole[1] == [("call_0", json.dumps({"arguments": arguments}, separators=(",", ":")))]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_log_probabilities_of_a_thought_open_no_message(
    offline: OfflineDoor, fake: FakeDaemon, *, stream: bool
) -> None:
    pieces = [("reasoning", "a"), ("reasoning", "b"), ("text", "X"), ("text", "Y")]
    logprobs = [{"token": 1, "text": text, "logprob": -0.5, "top": []} for _, text in pieces]
    fake.pieces = [{kind: text, "logprobs": [each]} for (kind, text), each in zip(pieces, logprobs, strict=True)]
    fake.answers["infer"] = ANSWER | {"text": "XY", "reasoning": "ab", "logprobs": logprobs}
    include = ["message.output_text.logprobs"]
    answer = await offline.post("/v1/responses", BODIES["/v1/responses"] | {"stream": stream, "include": include})
    thought, message = (answer.events[-1]["response"] if stream else answer.json)["output"]
    assert [(each["type"], each["content"][0]["text"]) for each in (thought, message)] == [
        ("reasoning", "ab"),
        ("message", "XY"),
    ]
    assert [each["token"] for each in message["content"][0]["logprobs"]] == ["a", "b", "X", "Y"]


async def test_the_free_text_of_a_custom_tool_that_was_cut_is_no_call(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.pieces = [*pieces_of(0, '{"input":"*** Begin', "arguments")]
    fake.ending = {"finish_reason": "length"}
    tools = [{"type": "custom", "name": "weather"}]
    body = {"model": "guide", "input": "Hi", "tools": tools, "stream": True}
    (item,) = (await offline.post("/v1/responses", body)).events[-1]["response"]["output"]
    assert (item["type"], item["status"]) == ("message", "incomplete")
    assert item["content"][0]["text"] == '{"name": "weather", "arguments": {"input":"*** Begin'


@pytest.mark.parametrize(
    "arguments",
    ["[" * 2000, '{"input":' * 1500 + "1" + "}" * 1500, "[1]", '{"text":"a"}'],
    ids=["brackets", "objects", "a list", "another member"],
)
async def test_the_free_text_of_a_custom_tool_is_any_arguments_as_the_model_wrote_them(
    offline: OfflineDoor, fake: FakeDaemon, arguments: str
) -> None:
    fake.answers["infer"] = ANSWER | {"text": "", "tool_calls": [call(0, arguments)]}
    tools = [{"type": "custom", "name": "weather"}]
    answer = await offline.post("/v1/responses", {"model": "guide", "input": "Hi", "tools": tools})
    assert answer.json["output"][-1]["input"] == arguments


async def test_of_several_answers_each_has_its_own_cut_call(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.pieces = [
        {"index": place, **piece}
        for pair in zip(pieces_of(0, ARGUMENTS), pieces_of(0, ARGUMENTS[:-1] + " "), strict=True)
        for place, piece in enumerate(pair)
    ]
    ends = [{"finish_reason": "stop"}, {"finish_reason": "length"}]
    fake.ending = {"answers": ends}
    body = BODIES["/v1/chat/completions"] | {"n": 2, "stream": True}
    choices = [
        choice
        for event in (await offline.post("/v1/chat/completions", body)).events
        if isinstance(event, dict)
        for choice in event["choices"]
    ]
    called = [choice["index"] for choice in choices if choice["delta"].get("tool_calls")]
    texts = [choice["index"] for choice in choices if choice["delta"].get("content")]
    assert (called, texts) == ([0], [1])
    assert [choice["finish_reason"] for choice in choices[-2:]] == ["tool_calls", "length"]


CALL = st.lists(st.sampled_from(['{"a":', '"b"', "1", "}", ""]), max_size=4)
PARTS = st.lists(st.one_of(st.sampled_from(["text", "more"]), CALL), max_size=6)


@given(parts=PARTS, reason=st.sampled_from(["stop", "length"]))
def test_whatever_comes_in_whatever_pieces_is_joined_to_the_whole_answer(
    parts: list[str | list[str]], reason: Any
) -> None:
    chunks: list[Chunk] = []
    calls = 0
    for part in parts:
        if isinstance(part, str):
            chunks.append(Chunk(id=1, seq=0, text=part))
            continue
        deltas = [ToolCallDelta(index=calls, id=f"c{calls}", name="f")]
        deltas += [ToolCallDelta(index=calls, arguments=each) for each in part]
        chunks += [
            Chunk(id=1, seq=len(chunks) + place, text="", tool_calls=[each]) for place, each in enumerate(deltas)
        ]
        calls += 1
    usage, timings = Usage(1, 0, 1), Timings(queue_ms=0, prefill_ms=0, ttft_ms=0, decode_ms=0, total_ms=0)
    ended = Answer(finish_reason=reason, model="m", seed=1, usage=usage, timings=timings, chunks=len(chunks))
    held = WholeCalls()
    sent = [each for chunk in chunks for each in held.released(chunk)] + held.rest(ended)
    calls_sent = [call for chunk in sent for call in chunk.tool_calls or []]
    assert all(call.id and call.name for call in calls_sent), "each piece is a whole call"
    if parts and isinstance(parts[-1], str):
        # Only the end of an answer cuts a call.
        assert joined(ended, sent) == joined(ended, chunks)
    else:
        assert joined(ended, sent) == without_cut_call(joined(ended, chunks))
