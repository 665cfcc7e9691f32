"""Completion servers as targets: HTTP bodies, server-sent events, the forms of two dialects."""

import asyncio
import json
from typing import Any

import pytest

from car_client.carctl.bench.completions import CompletionServer, LoadError, events, parse_url
from car_client.carctl.bench.workload import PlannedRequest
from tests.client.carctl.bench.fake_sse_server import WHOLE, fake_sse_server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
REQUEST = PlannedRequest([1, 2, 3], 64).params
OPENAI_USAGE = {"choices": [], "usage": {"completion_tokens": 5, "prompt_tokens": 3}}
LLAMA_USAGE = {"content": "", "stop": True, "tokens_predicted": 9, "tokens_evaluated": 4}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**members: object) -> bytes:
    return chunk(b"data: " + json.dumps(members).encode() + b"\n\n")


async def received(answer: bytes, size: int = 1 << 20) -> list[str]:
    """Return the texts of an answer that comes in pieces of this size, up to the end of its connection."""
    reader = asyncio.StreamReader()

    async def feed() -> None:
        for start in range(0, len(answer), size):
            reader.feed_data(answer[start : start + size])
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.create_task(feed())
    try:
        return [each.content async for each in events(reader) if not each.done]
    finally:
        await feeding


def sent(path: str, options: dict[str, Any]) -> tuple[bytes, dict[str, Any], int]:
    """Return the head of a request, its body, and the bytes of the body."""
    head, _, content = CompletionServer(f"http://host:80{path}", options).encode(REQUEST).partition(b"\r\n\r\n")
    return head, json.loads(content), len(content)


def test_a_greedy_request_is_sent_with_the_samplers_that_cost_llama_server_least() -> None:
    _, body, _ = sent("", {"temperature": 0})
    assert (body["temperature"], body["samplers"], body["top_k"]) == (0, ["top_k"], 1)
    assert not {"samplers", "top_k"} & sent("", {"temperature": 0.7})[1].keys()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_whole_however_they_come(size: int) -> None:
    lines = (
        b': a comment\r\ndata: {"content":"one"}\r\n\r\nevent: x\ndata:{"content":"two"}\n\ndata: [DONE]\n\ndata: half'
    )
    assert await received(PLAIN_HEAD + lines, size) == ["one", "two"]


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
async def test_a_body_in_chunks_is_put_together_however_it_comes(size: int) -> None:
    data = b'data: {"content":"one"}\n\n'
    chunks = chunk(data[:9]) + b"3;extension=1\r\n" + data[9:12] + b"\r\n" + chunk(data[12:]) + chunk(b"")
    assert await received(HEAD + chunks + b"more", size) == ["one"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found: check the address, its path and the name of the model"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "401 Unauthorized: check the key in CARD_API_KEY"),
        (b"HTTP/1.1 500 Oh No\r\n\r\n", "500 Oh No: check the address and its path"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", "application/json instead of a stream"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no type instead of a stream"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "does not speak HTTP"),
        (b"x" * 70_000, "does not speak HTTP"),
        (HEAD + b"what?\r\n", "not valid HTTP"),
        (HEAD + b"-5\r\nabcde\r\n", "not valid HTTP"),
        (HEAD + b"x" * 200_000, "not valid HTTP"),
        (HEAD + event(error={"message": "too long"}), "an error: too long"),
        (HEAD + chunk(b"data: nonsense\n\n"), "not a completion"),
        (HEAD + event(choices="none"), "not a completion"),
    ],
)
async def test_what_is_no_stream_of_completions_is_named(answer: bytes, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        await received(answer)


@pytest.mark.parametrize("answer", [b"", HEAD, HEAD + event(content="a")])
async def test_an_answer_without_its_end_is_an_error(answer: bytes) -> None:
    with pytest.raises(LoadError, match="closed before the answer ended"):
        await received(answer)


def test_completions_are_asked_for_in_the_words_of_openai() -> None:
    head, body, size = sent("/v1/completions", {"temperature": 0})
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: host:80\r\n")
    assert (body["prompt"], body["max_tokens"], body["stream"]) == ([1, 2, 3], 64, True)
    assert body["stream_options"] == {"include_usage": True}
    assert f"content-length: {size}".encode() in head


def test_llama_server_is_asked_in_its_own_words() -> None:
    _, body, _ = sent("/completion", {"temperature": 0, "cache_prompt": False, "priority": "throughput"})
    assert (body["n_predict"], body["cache_prompt"], body["temperature"]) == (64, False, 0)
    assert "priority" not in body


@pytest.mark.parametrize(
    ("found", "pieces", "tokens", "prompt_tokens"),
    [
        ([{"choices": [{"text": "a"}]}, {"choices": [{"text": ""}]}, OPENAI_USAGE], 1, 5, 3),
        ([{"content": "a", "tokens_predicted": 1}, {"content": "b"}, LLAMA_USAGE], 2, 9, 4),
        ([{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, "[DONE]"], 2, 2, None),
        ([{"choices": [{"text": "a"}]}, {"choices": [{"text": None, "finish_reason": "stop"}]}], 1, 1, None),
        ([{"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": -5}}], 1, 1, None),
        ([{"choices": [{"delta": {"reasoning": "a"}}]}, {"choices": [{"text": "b"}]}, "[DONE]"], 2, 2, None),
    ],
)
async def test_an_answer_has_the_tokens_that_its_server_counts_else_its_pieces(
    found: list[Any], pieces: int, tokens: int, prompt_tokens: int | None
) -> None:
    with fake_sse_server() as server:
        server.events = found
        answer = await CompletionServer(server.url, {}).stream(REQUEST)
    assert (len(answer.piece_times), answer.tokens, answer.prompt_tokens) == (pieces, tokens, prompt_tokens)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("found", [[], ["[DONE]"], [{"choices": [{"text": "a"}]}]])
async def test_an_answer_without_any_token_or_end_is_an_error(found: list[Any], chunked: bool) -> None:
    with fake_sse_server() as server:
        server.events, server.chunked = found, chunked
        with pytest.raises(LoadError, match="closed before the answer ended"):
            await CompletionServer(server.url, {}).stream(REQUEST)


async def test_a_chat_is_sent_in_openai_s_words_with_the_label_as_the_program() -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "json_schema": {"type": "object"}}
    usage = {"completion_tokens": 2, "prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    with fake_sse_server() as server:
        server.events = [
            {"choices": [{"delta": {"role": "assistant", "content": None}}]},
            {"choices": [{"delta": {"reasoning_content": "Well"}}]},
            {"choices": [{"delta": {"content": "Hello"}}]},
            {"choices": [], "usage": usage},
            "[DONE]",
        ]
        answer = await CompletionServer(f"{server.url}/v1", {"client": "home", "temperature": 0}).stream(chat)
        ((path, body),) = server.asked
    assert (path, server.agents) == ("/v1/chat/completions", ["home"])
    assert (body["messages"], body["max_tokens"], body["temperature"]) == (chat["messages"], 9, 0)
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (answer.text, len(answer.piece_times), answer.tokens) == ("Hello", 2, 2)
    assert (answer.prompt_tokens, answer.cached_tokens) == (7, 4)


@pytest.mark.parametrize("chunked", [True, False])
async def test_texts_are_embedded_by_openai_s_endpoint(chunked: bool) -> None:
    with fake_sse_server() as server:
        server.chunked = chunked
        answer = await CompletionServer(server.url, {"client": "embedder"}).whole({"input": ["one", "two"]})
        assert server.asked == [("/v1/embeddings", {"input": ["one", "two"]})]
    assert (len(answer.piece_times), answer.tokens, answer.prompt_tokens) == (1, 0, 7)


def test_a_key_goes_into_the_head_of_each_request() -> None:
    request = {"input": ["one"]}
    assert b"\r\nauthorization: Bearer secret\r\n" in CompletionServer("http://host", {}, "secret").encode(request)
    assert b"authorization" not in CompletionServer("http://host", {}).encode(request)


async def test_decisions_go_to_the_endpoint_that_llama_server_has_too() -> None:
    questions = [
        {"type": "choice", "instructions": "Which?", "options": [{"value": "a"}, {"value": "b"}]},
        {"type": "predicate", "instructions": "Is it so?"},
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    with fake_sse_server() as server:
        answer = await CompletionServer(server.url, {"client": "decider"}).whole(
            {"state": "mail", "questions": questions}
        )
        ((path, body),) = server.asked
    assert (path, body["state"], answer.tokens, answer.prompt_tokens) == ("/v1/systemone", "mail", 0, 9)
    assert body["questions"] == {
        "0": {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}},
        "1": {"type": "noul", "instructions": "Is it so?"},
        "2": {"type": "score", "instructions": "How?", "criteria": ["low", "high"]},
    }


async def test_a_json_object_without_embeddings_or_decisions_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WHOLE, "embeddings", b'{"error":"unexpected endpoint","usage":{}}')
    with fake_sse_server() as server, pytest.raises(LoadError, match="neither embeddings nor decisions"):
        await CompletionServer(server.url, {}).whole({"input": ["one"]})


async def test_a_server_without_embeddings_is_named() -> None:
    with fake_sse_server() as server:
        server.status = 501
        with pytest.raises(LoadError, match="501"):
            await CompletionServer(server.url, {}).whole({"input": ["one"]})


@pytest.mark.parametrize(
    "wrong",
    [
        *("127.0.0.1:8080", "https://host", "http://", "unix:/x", "http://host:x", "http://h:0"),
        *("http://user:word@host", "http://host/?a=b", "http://host/a b", "http://host/#a"),
    ],
)
def test_addresses_that_cannot_be_asked_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        parse_url(wrong)
