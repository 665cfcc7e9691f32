"""Forms of requests that the vendors' servers take, and forms that are refused because no answer would fit."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER, EMBEDDINGS
from tests.door.support import Answer, OfflineDoor
from tests.e2e.support import conversation

HELLO: dict[str, Any] = {"model": "guide", "messages": conversation("Hi")}
PROMPT: dict[str, Any] = {"model": "guide", "prompt": "Hi"}
CHATS = {
    "/v1/chat/completions": HELLO,
    "/v1/responses": {"model": "guide", "input": "Hi"},
    "/v1/messages": HELLO | {"max_tokens": 9},
}


async def sent(door: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the params that the daemon got for a whole answer."""
    answer = await door.post(path, body)
    assert answer.status == 200, answer.body
    params: dict[str, Any] = fake.params("infer")
    return params


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (40, 40), (None, None)])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat"])
async def test_all_tokens_count_for_a_top_k_of_0_and_less(
    offline: OfflineDoor, fake: FakeDaemon, path: str, top_k: int | None, expected: int | None
) -> None:
    own = {"options": {"top_k": top_k}, "stream": False} if path == "/api/chat" else {"top_k": top_k, "max_tokens": 9}
    params = await sent(offline, fake, path, HELLO | PROMPT | own)
    assert params.get("top_k") == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_predict": 0}, {}),
        ({"num_predict": -2}, {}),
        ({"num_predict": 5.0, "top_k": 40.0}, {"max_tokens": 5, "top_k": 40}),
        ({"num_predict": 5.9, "seed": 42.0, "repeat_last_n": 64.0}, {"max_tokens": 5, "seed": 42, "repeat_last_n": 64}),
    ],
)
async def test_ollamas_whole_numbers_may_have_a_fraction_and_0_tokens_are_what_fits(
    offline: OfflineDoor, fake: FakeDaemon, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    params = await sent(offline, fake, "/api/chat", HELLO | {"stream": False, "options": options})
    assert params == {"messages": conversation("Hi"), "model": "guide"} | expected


async def test_an_empty_template_is_none(offline: OfflineDoor, fake: FakeDaemon) -> None:
    empty = {"template": "", "system": "", "suffix": "", "context": [], "images": [], "format": "", "stream": False}
    params = await sent(offline, fake, "/api/generate", PROMPT | empty)
    assert params == {"messages": conversation("Hi"), "model": "guide"}


@pytest.mark.parametrize("body", [{}, {"input": []}, {"input": ""}, {"prompt": ""}])
async def test_a_request_to_embed_nothing_has_no_vectors_of_a_model_that_is_there(
    offline: OfflineDoor, fake: FakeDaemon, body: dict[str, Any]
) -> None:
    many = await offline.post("/api/embed", {"model": "guide:latest"} | body)
    one = await offline.post("/api/embeddings", {"model": "guide"} | body)
    assert (many.status, many.json["embeddings"], one.status, one.json) == (200, [], 200, {"embedding": []})
    assert (await offline.post("/api/embed", {"model": "other"} | body)).status == 404


async def test_ollamas_texts_are_cut_where_they_are_too_long_unless_the_request_forbids_it(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    fake.answers["embed"] = EMBEDDINGS
    for more, cut in (({}, True), ({"truncate": None}, True), ({"truncate": True}, True), ({"truncate": False}, False)):
        await offline.post("/api/embed", {"model": "guide", "input": "a"} | more)
        assert fake.params("embed")["truncate"] is cut


async def test_texts_for_several_calls_are_embedded_in_their_order(offline: OfflineDoor, fake: FakeDaemon) -> None:
    calls: list[int] = []

    def embed(params: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(params["input"]))
        return EMBEDDINGS | {"embeddings": [[float(text)] for text in params["input"]]}

    fake.answers["embed"] = embed
    texts = [str(number) for number in range(600)]
    answer = await offline.post("/v1/embeddings", {"model": "guide", "input": texts})
    assert [each["embedding"] for each in answer.json["data"]] == [[float(text)] for text in texts]
    assert calls == [256, 256, 88]
    assert answer.json["usage"]["prompt_tokens"] == 3 * EMBEDDINGS["usage"]["prompt_tokens"]
    ollama = await offline.post("/api/embed", {"model": "guide", "input": texts})
    assert ollama.json["embeddings"] == [[float(text)] for text in texts]
    refused = await offline.post("/v1/embeddings", {"model": "guide", "input": ["a"] * 2049})
    assert (refused.status, refused.json["error"]["param"]) == (400, "input")
    assert "2049 texts, at most 2048" in refused.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        ("/v1/chat/completions", "required"),
        ("/v1/chat/completions", {"type": "function", "function": {"name": "f"}}),
        ("/v1/responses", "required"),
        ("/v1/responses", {"type": "function", "name": "f"}),
        ("/v1/messages", {"type": "any"}),
        ("/v1/messages", {"type": "tool", "name": "f"}),
    ],
)
@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": None}])
async def test_a_call_that_is_required_without_tools_is_refused(
    offline: OfflineDoor, path: str, choice: Any, tools: dict[str, Any]
) -> None:
    answer = await offline.post(path, CHATS[path] | tools | {"tool_choice": choice})
    assert answer.status == 400
    assert "tool_choice: there are no `tools` to choose from" in answer.json["error"]["message"]


@pytest.mark.parametrize(("path", "body"), CHATS.items())
@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_a_choice_that_requires_no_call_may_come_without_tools(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any], choice: str
) -> None:
    written = {"type": choice} if path == "/v1/messages" else choice
    params = await sent(offline, fake, path, body | {"tools": [], "tool_choice": written})
    assert not {"tools", "tool_choice"} & set(params)


THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
ENCRYPTED = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
ANSWERED = {"role": "assistant", "content": "Hello"}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([ENCRYPTED], []),
        ([ENCRYPTED, ANSWERED], [{"role": "assistant", "content": "Hello"}]),
        ([ANSWERED, ENCRYPTED, CALLED], [ANSWERED | {"tool_calls": [CALL]}]),
        ([THOUGHT], [{"role": "assistant", "content": "", "reasoning": "hm"}]),
        ([THOUGHT, ANSWERED], [{"role": "assistant", "content": "Hello", "reasoning": "hm"}]),
    ],
)
async def test_thoughts_without_a_text_are_an_empty_one_and_encrypted_ones_none(
    offline: OfflineDoor, fake: FakeDaemon, items: list[Any], expected: list[Any]
) -> None:
    question = conversation("Hi")
    params = await sent(offline, fake, "/v1/responses", {"model": "guide", "input": [*question, *items, *question]})
    assert params["messages"] == [*question, *expected, *question]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, "{}"),
        ("", "{}"),
        (" ", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": "b', r'{"arguments":"{\"a\": \"b"}'),
        ("[]", '{"arguments":"[]"}'),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
async def test_arguments_of_an_earlier_call_that_are_missing_or_were_cut_are_an_object(
    offline: OfflineDoor, fake: FakeDaemon, path: str, arguments: str | None, expected: str
) -> None:
    if path == "/api/chat" and arguments is None:
        arguments = ""  # Ollama's clients leave the member out
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [*conversation("Hi"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    body: dict[str, Any] = {"model": "guide", "messages": turns, "stream": False}
    if path == "/v1/responses":
        body = {"model": "guide", "input": [*conversation("Hi"), CALLED | {"arguments": arguments}]}
    params = await sent(offline, fake, path, body)
    assert params["messages"][1]["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize(("arguments", "expected"), [("", {}), ('{"a', {"arguments": '{"a'}), ('{"a":1}', {"a": 1})])
async def test_a_call_that_a_limit_cut_has_its_arguments_as_data(
    offline: OfflineDoor, fake: FakeDaemon, arguments: str, expected: dict[str, Any]
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    fake.answers["infer"] = ANSWER | {"text": "", "tool_calls": [call]}
    message = await offline.post("/v1/messages", HELLO | {"max_tokens": 9})
    assert message.json["content"][0]["input"] == expected
    chat = await offline.post("/api/chat", HELLO | {"stream": False})
    assert chat.json["message"]["tool_calls"][0]["function"]["arguments"] == expected


async def test_an_empty_grammar_is_none(offline: OfflineDoor, fake: FakeDaemon) -> None:
    assert "grammar" not in await sent(offline, fake, "/v1/chat/completions", HELLO | {"grammar": ""})
    assert (await sent(offline, fake, "/v1/completions", PROMPT | {"grammar": 'root ::= "a"'}))["grammar"]


@pytest.mark.parametrize(("n", "best_of", "status"), [(2, 2, 200), (1, 1, 200), (None, 1, 200), (1, 2, 400)])
async def test_the_best_of_as_many_answers_as_are_wanted_are_all_of_them(
    offline: OfflineDoor, n: int | None, best_of: int, status: int
) -> None:
    answer = await offline.post("/v1/completions", PROMPT | {"n": n, "best_of": best_of})
    assert answer.status == status


@pytest.mark.parametrize(
    ("path", "more", "member"),
    [
        ("/v1/chat/completions", {"top_logprobs": 3}, "top_logprobs"),
        ("/v1/messages", {"tools": [{"name": "f"}], "max_tokens": 5}, "tools[0].input_schema"),
    ],
)
async def test_a_member_that_needs_another_names_what_is_missing(
    offline: OfflineDoor, path: str, more: dict[str, Any], member: str
) -> None:
    answer = await offline.post(path, {"model": "guide", "messages": [{"role": "user", "content": "Hi"}]} | more)
    assert answer.status == 400
    assert member in answer.json["error"]["message"]


async def test_each_of_several_prompts_is_a_request_of_its_own(offline: OfflineDoor, fake: FakeDaemon) -> None:
    prompts = [[1, 2], "two", [3], *(f"prompt {number}" for number in range(40))]
    answer = await offline.post("/v1/completions", PROMPT | {"prompt": prompts, "seed": 7})
    assert [choice["index"] for choice in answer.json["choices"]] == list(range(43))
    assert answer.json["usage"]["prompt_tokens"] == 43 * ANSWER["usage"]["prompt_tokens"]
    assert len(answer.json["card"]["prompts"]) == 43
    calls = [msgspec.json.decode(call.params) for call in fake.calls if call.method == "infer"]
    assert {call["seed"] for call in calls} == {7}
    sent = sorted(json.dumps(call.get("prompt", call.get("tokens"))) for call in calls)
    assert sent == sorted(json.dumps(prompt) for prompt in prompts)


@pytest.mark.parametrize(
    ("more", "member"),
    [
        ({"prompt": ["one", 2]}, "prompt"),
        ({"prompt": [["one"], ["two"]]}, "prompt"),
        ({"prompt": ["one", []]}, "prompt"),
        ({"prompt": ["one"] * 2049}, "prompt"),
        ({"prompt": ["one", [2]], "echo": True}, "echo"),
        ({"prompt": ["one", "two"], "stream": True}, "stream"),
        ({"prompt": ["one", "two"], "card": {"supersede": "key"}}, "card.supersede"),
        ({"prompt": ["one", "two"], "best_of": 3}, "best_of"),
    ],
)
async def test_several_prompts_that_cannot_be_answered_together_are_refused(
    offline: OfflineDoor, fake: FakeDaemon, more: dict[str, Any], member: str
) -> None:
    answer = await offline.post("/v1/completions", PROMPT | more)
    assert (answer.status, answer.json["error"]["param"]) == (400, member)
    assert not [call for call in fake.calls if call.method == "infer"]


async def test_a_prompt_that_fails_ends_the_others(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.silent.add("infer")
    fake.first["infer"] = [RpcError("overloaded", why="queue full")]
    answer = await offline.post("/v1/completions", PROMPT | {"prompt": ["one", "two", "three"]})
    assert (answer.status, answer.json["error"]["code"]) == (429, "rate_limit_exceeded")
    await asyncio.to_thread(fake.wait_until_gone, 2)


async def test_the_other_prompts_end_when_the_client_leaves(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.silent.add("infer")
    answer, body = Answer(), json.dumps(PROMPT | {"prompt": ["one", "two"]}).encode()
    task = asyncio.create_task(
        offline.into(answer, "POST", "/v1/completions", body, {"content-type": "application/json"})
    )
    await fake.saw("infer", 2)
    answer.left.set()
    await task
    await asyncio.to_thread(fake.wait_until_gone, 2)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_an_effort_goes_to_the_template(offline: OfflineDoor, fake: FakeDaemon, path: str) -> None:
    answer = await offline.post(path, HELLO | {"max_tokens": 9, "output_config": {"effort": "low"}})
    assert answer.status == 200, answer.body
    params = fake.params("infer" if path == "/v1/messages" else "tokenize")
    assert params["template_args"] == {"reasoning_effort": "low"}


async def test_a_document_has_its_title_and_its_context_before_its_text(offline: OfflineDoor, fake: FakeDaemon) -> None:
    text = {"type": "text", "media_type": "text/plain", "data": "Water is wet."}
    document = {"type": "document", "source": text, "title": "On water", "context": "A draft."}
    for block, expected in [
        (document, "On water\nA draft.\nWater is wet."),
        ({"type": "document", "source": text}, "Water is wet."),
    ]:
        turns = [{"role": "user", "content": [block]}]
        params = await sent(offline, fake, "/v1/messages", {"max_tokens": 9, "messages": turns})
        assert params["messages"][0]["content"] == [{"type": "text", "text": expected}]


STREAM = {"accept": "text/event-stream"}


@pytest.mark.parametrize(("path", "headers"), [("/models/sse", {}), ("/card/capacity", STREAM)])
async def test_the_head_of_a_stream_without_end_is_a_whole_answer(
    offline: OfflineDoor, path: str, headers: dict[str, str]
) -> None:
    answer = await offline.request("HEAD", path, b"", headers)
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")


async def test_system_blocks_of_other_types_and_search_results_are_refused_by_their_type(offline: OfflineDoor) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    found = {"type": "search_result", "source": "https://a", "title": "A", "content": [{"type": "text", "text": "b"}]}
    hello = HELLO | {"max_tokens": 9}
    system = await offline.post("/v1/messages", hello | {"system": [{"type": "text", "text": "s"}, image]})
    assert (system.status, "system[1]: blocks of the type `image`" in system.json["error"]["message"]) == (400, True)
    search = await offline.post("/v1/messages", hello | {"messages": [{"role": "user", "content": [found]}]})
    assert (search.status, "type `search_result`" in search.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/models//", "/v1/models"])
async def test_slashes_around_a_path_count_for_nothing(offline: OfflineDoor, path: str) -> None:
    answer = await offline.get(path)
    assert (answer.status, answer.json["object"]) == (200, "list")
    key = await offline.request("GET", path, b"", {"host": "localhost"}, unix=False)
    assert key.status == 401
    assert (await offline.post("/v1/chat/completions/", HELLO)).status == 200


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", HELLO), ("/v1/completions", PROMPT)])
async def test_the_fingerprint_is_in_a_whole_answer_and_in_a_stream_from_the_reason_of_its_end_on(
    offline: OfflineDoor, fake: FakeDaemon, path: str, body: dict[str, Any]
) -> None:
    fake.answers["infer"] = ANSWER | {"text": "Hello", "fingerprint": "card-1"}
    fake.ending = {"fingerprint": "card-1"}
    whole = await offline.post(path, body)
    assert whole.json["system_fingerprint"] == "card-1"
    stream = await offline.post(path, body | {"stream": True, "stream_options": {"include_usage": True}})
    *before, last, usage = stream.events
    assert {event["system_fingerprint"] for event in before} == {None}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert [event["system_fingerprint"] for event in (last, usage)] == ["card-1", "card-1"]
