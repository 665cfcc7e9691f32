"""Tools that only their vendors' servers have: left out of a request, and refused where the choice names one."""

import logging
import typing
from typing import Any

import pytest

from car_http.dialects.vendor_tools import vendor_tool
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import Answer, DoorProcess, OfflineDoor
from tests.door.test_openai_client import SHORT, connected
from tests.e2e.support import conversation

CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "guide", "messages": conversation("Hi")},
    RESPONSES: {"model": "guide", "input": "Hi"},
    MESSAGES: {"model": "guide", "messages": conversation("Hi"), "max_tokens": 9},
    OLLAMA: {"model": "guide", "messages": conversation("Hi"), "stream": False},
}
OWN: dict[str, dict[str, Any]] = {
    CHAT: FUNCTION,
    RESPONSES: {"type": "function", "name": "weather", "parameters": SCHEMA},
    MESSAGES: {"name": "weather", "input_schema": SCHEMA},
    OLLAMA: FUNCTION,
}


def left_out(path: str, answer: Answer) -> Any:
    """Return the note in the last object of an answer."""
    if answer.headers["content-type"] == "application/json":
        last = answer.json
    else:
        last = answer.lines[-1] if path == OLLAMA else answer.events[-2 if path == MESSAGES else -1]
    return last.get("response", last)["card"].get("left_out")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "more", "kinds"),
    [
        (CHAT, {"tools": [{"type": "web_search"}, FUNCTION]}, ["web_search"]),
        (CHAT, {"tools": [{"type": "openrouter:web_search"}, FUNCTION]}, ["web_search"]),
        (CHAT, {"tools": [FUNCTION], "web_search_options": {}}, ["web_search_options"]),
        (
            RESPONSES,
            {"tools": [{"type": "web_search", "external_web_access": False}, OWN[RESPONSES], {"type": "web_search"}]},
            ["web_search"],
        ),
        (
            RESPONSES,
            {
                "tools": [
                    {"type": "namespace", "name": "n", "tools": [{"type": "mcp", "server_label": "x"}]},
                    {"type": "code_interpreter", "container": {"type": "auto"}},
                    OWN[RESPONSES],
                ]
            },
            ["mcp", "code_interpreter"],
        ),
        (MESSAGES, {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}, OWN[MESSAGES]]}, ["web_fetch"]),
        (
            MESSAGES,
            {"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}, OWN[MESSAGES]], "mcp_servers": [{"url": "x"}]},
            ["mcp_servers", "mcp"],
        ),
        (
            MESSAGES,
            {"tools": [{"type": "mcp_toolset"}, {"type": "web_search_20250305"}, OWN[MESSAGES]]},
            ["mcp", "web_search"],
        ),
        (OLLAMA, {"tools": [{"type": "web_search_preview"}, FUNCTION]}, ["web_search"]),
        (CHAT, {"tools": [{"type": "x_search"}, {"type": "google_search"}, FUNCTION]}, ["x_search", "google_search"]),
        (CHAT, {"tools": [{"type": "openrouter:datetime"}, FUNCTION]}, ["openrouter:datetime"]),
        (CHAT, {"tools": [{"type": "open-router2:date-time.v2"}, FUNCTION]}, ["open-router2:date-time.v2"]),
        (CHAT, {"tools": [{"type": "web_extractor"}, FUNCTION]}, ["web_extractor"]),
        (
            CHAT,
            {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}, FUNCTION]},
            ["builtin_function"],
        ),
    ],
)
async def test_a_tool_that_only_its_vendors_server_has_is_left_out_and_the_answer_and_the_log_say_so(
    offline: OfflineDoor,
    fake: FakeDaemon,
    caplog: pytest.LogCaptureFixture,
    path: str,
    more: dict[str, Any],
    kinds: list[str],
    *,
    stream: bool,
) -> None:
    caplog.set_level(logging.INFO, "car_http")
    answer = await offline.post(path, BODIES[path] | more | {"stream": stream})
    assert answer.status == 200, answer.body
    assert left_out(path, answer) == kinds
    sent = fake.params("infer_stream" if stream else "infer")
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather"]
    (line,) = caplog.messages
    # A name with a colon may be any text.
    assert all((kind in line) is (":" not in kind) for kind in kinds)


async def test_a_long_name_with_a_colon_is_no_vendors_tool(offline: OfflineDoor) -> None:
    answer = await offline.post(CHAT, BODIES[CHAT] | {"tools": [{"type": "a:" + "y" * 65}, FUNCTION]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools[0]")


@pytest.mark.parametrize(("path", "body"), BODIES.items())
async def test_a_request_whose_tools_are_all_left_out_has_none_and_an_answer_without_such_tools_no_note(
    offline: OfflineDoor, fake: FakeDaemon, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO, "car_http")
    choice = {"type": "auto"} if path == MESSAGES else "auto"
    searching = [{"type": "web_search_20250305", "name": "web_search"}]
    answer = await offline.post(path, body | {"tools": searching, "tool_choice": choice})
    assert left_out(path, answer) == ["web_search"]
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(fake.params("infer"))
    caplog.clear()
    assert left_out(path, await offline.post(path, body)) is None
    assert caplog.messages == []


ASKED = {"role": "user", "content": "Is it hot?"}
STEPS: dict[str, dict[str, Any]] = {
    RESPONSES: {
        "input": [
            ASKED,
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {"type": "mcp_list_tools", "server_label": "x", "tools": []},
            {"type": "mcp_call", "id": "m", "output": {"content": 1}, "arguments": {}},
            {"role": "assistant", "content": "It is."},
            ASKED,
        ]
    },
    MESSAGES: {
        "messages": [
            ASKED,
            {
                "role": "assistant",
                "content": [
                    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "heat"}},
                    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": {"error_code": "unavailable"}},
                    {"type": "mcp_tool_use", "id": "m1", "name": "f", "server_name": "x", "input": {}},
                    {"type": "text", "text": "It is."},
                ],
            },
            ASKED,
        ]
    },
}


@pytest.mark.parametrize(("path", "more"), STEPS.items())
async def test_steps_that_a_vendors_server_took_earlier_are_left_out_and_the_conversation_goes_on(
    offline: OfflineDoor, fake: FakeDaemon, path: str, more: dict[str, Any]
) -> None:
    answer = await offline.post(path, BODIES[path] | more)
    assert answer.status == 200, answer.body
    assert left_out(path, answer) == ["web_search", "mcp"]
    turns = [(turn["role"], turn["content"]) for turn in fake.params("infer")["messages"]]
    assert [role for role, _ in turns] == ["user", "assistant", "user"]
    assert turns[1] == ("assistant", "It is.")


@pytest.mark.parametrize(
    ("path", "more", "place"),
    [
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": {}}]}]},
            "messages[0].content[0].content",
        ),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "1", "output": {}}]}, "input[0].output"),
        (
            RESPONSES,
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}]},
            "input[0].arguments",
        ),
    ],
)
async def test_a_step_of_the_clients_own_in_such_a_form_is_refused_with_its_path(
    offline: OfflineDoor, path: str, more: dict[str, Any], place: str
) -> None:
    answer = await offline.post(path, BODIES[path] | more)
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith(f"{place}: Expected `")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": "required"}),
        (RESPONSES, {"tools": [{"type": "web_search"}, OWN[RESPONSES]], "tool_choice": {"type": "web_search"}}),
        (
            RESPONSES,
            {
                "tools": [{"type": "mcp", "server_label": "x"}, OWN[RESPONSES]],
                "tool_choice": {"type": "mcp", "server_label": "x"},
            },
        ),
        (
            RESPONSES,
            {
                "tools": [{"type": "web_search"}, OWN[RESPONSES]],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            },
        ),
        (
            MESSAGES,
            {
                "tools": [{"type": "web_search_20250305", "name": "search"}, OWN[MESSAGES]],
                "tool_choice": {"type": "tool", "name": "search"},
            },
        ),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "search"}], "tool_choice": {"type": "any"}}),
        (CHAT, {"tools": [{"type": "web_search"}], "tool_choice": "required"}),
        (CHAT, {"tools": [{"type": "web_search"}, OWN[CHAT]], "tool_choice": {"type": "web_search"}}),
        (
            CHAT,
            {
                "tools": [{"type": "web_search"}, FUNCTION],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [{"type": "web_search"}]},
                },
            },
        ),
    ],
)
async def test_a_choice_that_names_such_a_tool_or_leaves_no_other_is_refused_by_its_name(
    offline: OfflineDoor, fake: FakeDaemon, path: str, more: dict[str, Any]
) -> None:
    answer = await offline.post(path, BODIES[path] | more)
    assert answer.status == 400, answer.body
    message = answer.json["error"]["message"]
    assert message.startswith("tool_choice: ")
    assert "`web_search`" in message or "`mcp`" in message
    assert not [call for call in fake.calls if call.method == "infer"]


async def test_a_choice_that_names_a_tool_of_ones_own_means_that_one_also_beside_a_vendors_of_the_name(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    own = OWN[MESSAGES]
    body = {
        "tools": [own, {"type": "web_search_20250305", "name": own["name"]}],
        "tool_choice": {"type": "tool", "name": own["name"]},
    }
    assert (await offline.post(MESSAGES, BODIES[MESSAGES] | body)).status == 200
    assert fake.params("infer")["tool_choice"] == {"name": own["name"]}


async def test_of_the_allowed_tools_those_of_a_vendors_server_are_left_out(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}, OWN[RESPONSES]]}
    body = BODIES[RESPONSES] | {"tools": [{"type": "web_search"}, OWN[RESPONSES]], "tool_choice": choice}
    assert (await offline.post(RESPONSES, body)).status == 200
    assert fake.params("infer")["tool_choice"] == "required"


async def test_a_prompt_is_counted_without_the_tools_that_are_left_out(offline: OfflineDoor, fake: FakeDaemon) -> None:
    body = BODIES[MESSAGES] | {"tools": [{"type": "web_search_20250305", "name": "search"}, OWN[MESSAGES]]}
    assert (await offline.post("/v1/messages/count_tokens", body)).status == 200
    assert [tool["function"]["name"] for tool in fake.params("tokenize")["tools"]] == ["weather"]


@pytest.mark.parametrize("kind", ["function_", "websearch", "webhook", "x web_search", "", "custom_web_search"])
async def test_a_tool_of_an_unknown_type_is_refused_by_its_place(offline: OfflineDoor, kind: str) -> None:
    assert vendor_tool(kind) is None
    for path in (CHAT, RESPONSES, MESSAGES):
        answer = await offline.post(path, BODIES[path] | {"tools": [OWN[path], {"type": kind, "name": "f"}]})
        assert answer.status == 400
        assert "tools[1]" in answer.json["error"]["message"]


def types_of(union: Any) -> set[str]:
    """Return every `type` of the tools in an official union of them."""
    hints = [typing.get_type_hints(member).get("type") for member in typing.get_args(union)]
    return {kind for hint in hints for kind in typing.get_args(hint) if isinstance(kind, str)}


def test_every_type_of_tool_of_the_official_clients_is_offered_or_left_out() -> None:
    openai = pytest.importorskip("openai.types.responses")
    beta = pytest.importorskip("anthropic.types.beta")
    known = types_of(openai.ToolParam) | types_of(beta.BetaToolUnionParam)
    assert len(known) > 30
    offered = {kind for kind in known if vendor_tool(kind) is None}
    assert offered == {"function", "custom", "namespace"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_real_model_answers_openais_client_that_offers_a_search_of_the_web(
    door: DoorProcess, *, stream: bool
) -> None:
    pytest.importorskip("openai")
    with connected(door, "port", max_retries=0) as client:
        request: dict[str, Any] = {"model": "guide", "input": SHORT.question, "temperature": 0}
        request["tools"] = [{"type": "web_search", "external_web_access": False}]
        if not stream:
            answer = client.responses.create(**request)
        else:
            with client.responses.stream(**request) as events:
                answer = events.until_done().get_final_response()
    assert answer.output_text == SHORT.answer
    assert answer.card["left_out"] == ["web_search"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_real_model_answers_anthropics_client_that_offers_a_search_of_the_web(
    door: DoorProcess, *, stream: bool
) -> None:
    anthropic = pytest.importorskip("anthropic")
    request: dict[str, Any] = {"model": "guide", "max_tokens": 200, "messages": conversation(SHORT.question)}
    request |= {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=door.url, api_key=door.key, max_retries=0) as client:
        if not stream:
            answer = client.messages.create(**request)
        else:
            with client.messages.stream(**request) as events:
                answer = events.get_final_message()
    assert answer.content[0].text == SHORT.answer
