"""Anthropic's Python client, unmodified, over a loopback port and over the Unix socket."""

from collections.abc import Iterator
from typing import Any

import pytest

from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import DoorProcess, OfflineDoor
from tests.door.test_openai_client import CALL, PIECES, PNG, SHORT

anthropic = pytest.importorskip("anthropic")
httpx = pytest.importorskip("httpx2")
WEATHER = {"name": "weather", "description": "", "input_schema": {"type": "object", "properties": {}}}
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}  # newer clients have no member for it
QUESTION = [{"role": "user", "content": SHORT.question}]


@pytest.fixture(params=["port", "socket"])
def client(request: pytest.FixtureRequest, door: DoorProcess) -> Iterator[Any]:
    """A client of the door before the real daemon."""
    if request.param == "port":
        made = anthropic.Anthropic(base_url=door.url, api_key=door.key, max_retries=0)
    else:
        http = anthropic.DefaultHttpxClient(transport=httpx.HTTPTransport(uds=str(door.socket)))
        made = anthropic.Anthropic(base_url="http://card", api_key="unused", http_client=http, max_retries=0)
    with made as client:
        yield client


def test_a_message_is_answered_whatever_claude_is_named(client: Any) -> None:
    answer = client.messages.create(model="claude-sonnet-5", max_tokens=16_000, messages=QUESTION, **GREEDY)
    assert answer.content[0].text == SHORT.answer
    assert (answer.stop_reason, answer.model) == ("end_turn", "claude-sonnet-5")
    assert answer.usage.output_tokens > 0


def test_a_stream_has_every_event_and_the_same_message(client: Any) -> None:
    with client.messages.stream(model="guide", max_tokens=200, messages=QUESTION, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert message.content[0].text == SHORT.answer
    assert message.usage.output_tokens > 0
    raw = [kind for kind in kinds if kind != "text"]
    deltas = raw.count("content_block_delta")
    assert raw == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_the_first_event_and_the_last_count_the_same_prompt_also_when_it_was_cached(client: Any) -> None:
    request: dict[str, Any] = {"model": "guide", "max_tokens": 5, "messages": QUESTION, "system": "Be brief."}
    for _ in range(2):
        with client.messages.stream(**request) as stream:
            usages = [event.message.usage for event in stream if event.type == "message_start"]
            usages.append(stream.get_final_message().usage)
        first, last = [
            (use.input_tokens, use.cache_creation_input_tokens, use.cache_read_input_tokens) for use in usages
        ]
        assert first == last
    assert last[2] > 0
    counted = client.messages.count_tokens(model="guide", messages=QUESTION, system="Be brief.")
    assert sum(last) == counted.input_tokens


def test_a_stop_sequence_is_named(client: Any) -> None:
    stop = SHORT.answer.split()[2]
    answer = client.messages.create(model="guide", max_tokens=200, messages=QUESTION, **GREEDY, stop_sequences=[stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


def test_tokens_are_counted_as_the_message_computes_them(client: Any) -> None:
    counted = client.messages.count_tokens(model="claude-haiku-5", messages=QUESTION, system="Be brief.")
    answer = client.messages.create(model="guide", max_tokens=1, messages=QUESTION, system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_an_answer_that_was_begun_goes_on(client: Any) -> None:
    begun = SHORT.answer[:11]
    turns = [*QUESTION, {"role": "assistant", "content": begun}]
    answer = client.messages.create(model="guide", max_tokens=200, messages=turns, **GREEDY)
    assert begun + answer.content[0].text == SHORT.answer


def test_models_have_every_member_that_the_official_type_requires(client: Any) -> None:
    (listed,) = client.models.list()
    for model in (listed, client.models.retrieve("guide")):
        checked = anthropic.types.ModelInfo.model_validate(model.model_dump())
        assert (checked.id, checked.lifecycle, checked.capabilities) == ("guide", "active", None)
        assert checked.max_input_tokens == model.model_extra["context_length"]


def test_errors_are_those_of_the_client(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")
    long = [{"role": "user", "content": "word " * 6000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model="guide", max_tokens=9, messages=long)
    assert [model.id for model in client.models.list()] == ["guide"]


ANTHROPIC = {"anthropic_version": "2023-06-01"}


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/complete", "/v1/files", "/v1/skills"])
async def test_errors_of_paths_that_others_share_have_the_shape_of_the_client(offline: OfflineDoor, path: str) -> None:
    answer = await offline.get(path, **ANTHROPIC)
    assert (answer.status, answer.json["type"]) == (404, "error")
    assert answer.json["error"]["type"] == "not_found_error"
    for other in ({}, {"x_api_key": "any"}):
        assert (await offline.get(path, **other)).json["error"].keys() == {"message", "type", "param", "code"}


async def test_a_wrong_key_or_method_of_a_shared_path_is_refused_in_the_shape_of_the_client(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    head = {"host": "localhost", "anthropic-version": "2023-06-01", "x-api-key": "wrong"}
    refused = await offline.request("GET", "/v1/models", b"", head, unix=False)
    assert (refused.status, refused.json["error"]["type"]) == (401, "authentication_error")
    method = await offline.request("DELETE", "/v1/models", b"", head)
    assert (method.status, method.json["type"]) == (405, "error")
    fake.answers["models/list"] = RpcError("overloaded", why="queue full", retry_after_ms=300)
    busy = await offline.get("/v1/models", **ANTHROPIC)
    assert (busy.status, busy.json["error"]["type"]) == (529, "overloaded_error")


async def test_a_model_that_answers_messages_is_found_by_the_same_name(offline: OfflineDoor) -> None:
    for name in ("guide", "claude-sonnet-5"):
        body = {"model": name, "max_tokens": 9, "messages": QUESTION}
        assert (await offline.post("/v1/messages", body)).status == 200
        found = await offline.get(f"/v1/models/{name}", **ANTHROPIC)
        assert (found.status, found.json["id"], found.json["type"]) == (200, "guide", "model")
    # To OpenAI's clients such a name is unknown, as in their requests.
    assert (await offline.get("/v1/models/claude-sonnet-5")).status == 404


async def test_thoughts_text_and_calls_are_blocks(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.pieces = [{"reasoning": "Hm."}, {"text": "Let me see."}, {"tool_calls": PIECES}]
    fake.pieces += [{"tool_calls": [{"index": 1, "id": "call_2", "name": "weather", "arguments": "{}"}]}]
    body = {"model": "guide", "max_tokens": 9, "messages": QUESTION, "tools": [WEATHER], "stream": True}
    events = (await offline.post("/v1/messages?beta=true", body)).events
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use", "tool_use"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        *["input_json_delta"] * 2,
    ]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_client_reads_streamed_calls(scripted_door: DoorProcess, scripted: FakeDaemon) -> None:
    scripted.pieces = [{"tool_calls": [piece]} for piece in PIECES]
    request: dict[str, Any] = {"model": "guide", "max_tokens": 9, "messages": QUESTION, "tools": [WEATHER]}
    with (
        anthropic.Anthropic(base_url=scripted_door.url, auth_token=scripted_door.key, api_key=None) as client,
        client.messages.stream(**request) as stream,
    ):
        message = stream.get_final_message()
    scripted.pieces = ["Hel", "lo"]
    assert message.content[0].input == {"place": "Vienna"}
    assert message.stop_reason == "tool_use"


def test_the_client_raises_errors_of_its_own_for_batches_and_an_unknown_way_to_think(client: Any) -> None:
    request: dict[str, Any] = {"model": "guide", "max_tokens": 9, "messages": QUESTION}
    with pytest.raises(anthropic.NotFoundError, match="throughput"):
        client.messages.batches.create(requests=[{"custom_id": "a", "params": request}])
    with pytest.raises(anthropic.BadRequestError, match=r"thinking\.type: give disabled, enabled, adaptive"):
        client.messages.create(**request, extra_body={"thinking": {"type": "much"}})


async def test_a_result_of_a_tool_may_have_images(offline: OfflineDoor, fake: FakeDaemon) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": [image]}
    turns = [*QUESTION, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    body = {"model": "guide", "max_tokens": 9, "system": [cached], "messages": turns, "tools": [WEATHER]}
    assert (await offline.post("/v1/messages?beta=true", body, anthropic_beta="x-2026")).status == 200
    sent = fake.params("infer")["messages"]
    assert sent[0] == {"role": "system", "content": "Be brief."}
    assert sent[3] == {"role": "tool", "content": [{"type": "image", "data": PNG}], "tool_call_id": "c1"}


async def test_a_second_turn_carries_calls_results_and_images(offline: OfflineDoor, fake: FakeDaemon) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    turns = [
        {"role": "user", "content": [image, {"type": "text", "text": "Where?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "card"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"place": "Vienna"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}]
    body = {
        "model": "guide",
        "max_tokens": 9,
        "system": system,
        "messages": turns,
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "weather"},
        "thinking": {"type": "disabled"},
        "metadata": {"user_id": "u" * 300},
    }
    assert (await offline.post("/v1/messages", body, user_agent="claude-cli/2.0 (external)")).status == 200
    sent = fake.params("infer")
    assert [turn["role"] for turn in sent["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert sent["messages"][0]["content"] == "Be brief."
    assert sent["messages"][1]["content"][0] == {"type": "image", "data": PNG}
    assert sent["messages"][2]["reasoning"] == "Hm."
    assert sent["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"place":"Vienna"}'
    assert sent["tool_choice"] == {"name": "weather"}
    assert (sent["reasoning"], sent["client"], len(sent["session"])) == ("off", "claude-cli", 64)


async def test_calls_have_their_input_as_data(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = ANSWER | {"text": "", "reasoning": "Hm.", "tool_calls": [CALL]}
    answer = (await offline.post("/v1/messages", {"model": "guide", "max_tokens": 9, "messages": QUESTION})).json
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
    assert answer["content"][1]["input"] == {"place": "Vienna"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"tools": [{"type": "web_lookup", "name": "web_lookup"}]}, "web_lookup"),
        ({"container": "x"}, "container"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}, "base64"),
        ({"max_tokens": None}, "max_tokens"),
    ],
)
async def test_errors_have_the_shape_of_the_dialect(offline: OfflineDoor, more: dict[str, Any], expected: str) -> None:
    body = {"model": "guide", "max_tokens": 9, "messages": QUESTION, **more}
    answer = await offline.post("/v1/messages", body)
    assert answer.status == 400
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert expected in answer.json["error"]["message"]


async def test_a_limit_of_a_person_is_429(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = RpcError("quota", limit="in_flight", value=1, used=1, retry_after_ms=1000)
    answer = await offline.post("/v1/messages", {"model": "guide", "max_tokens": 9, "messages": QUESTION})
    assert (answer.status, answer.headers["retry-after-ms"]) == (429, "1000")
    assert (answer.json["error"]["type"], "x-should-retry" in answer.headers) == ("rate_limit_error", False)


async def test_clients_do_not_sleep_to_the_end_of_a_day_that_is_used_up(offline: OfflineDoor, fake: FakeDaemon) -> None:
    day: dict[str, Any] = {
        "limit": "tokens_per_day",
        "value": 30,
        "used": 31,
        "retry_after_ms": 78_466_727,
        "ends_at": 1_900_000_000,
    }
    fake.answers["infer"] = RpcError("quota", **day)
    answer = await offline.post("/v1/messages", {"model": "guide", "max_tokens": 9, "messages": QUESTION})
    assert (answer.status, answer.headers["retry-after"], answer.headers["x-should-retry"]) == (429, "78467", "false")
    assert "until 2030-03-17 17:46 UTC" in answer.json["error"]["message"]


async def test_an_overload_is_529(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["infer"] = RpcError("overloaded", why="queue full", retry_after_ms=300)
    answer = await offline.post("/v1/messages", {"model": "guide", "max_tokens": 9, "messages": QUESTION})
    assert (answer.status, answer.headers["retry-after-ms"]) == (529, "300")
    assert answer.json["error"]["type"] == "overloaded_error"
