"""The codecs of a load: the daemon's protocol, HTTP bodies, server-sent events, completions."""

import json

import pytest

from car_client.carctl.load.card_codec import CardCodec
from car_client.carctl.load.codec import End, LoadError, Received
from car_client.carctl.load.endpoint import parse_url
from car_client.carctl.load.http.body import HttpBody
from car_client.carctl.load.http.codec import HttpCodec
from car_client.carctl.load.http.sse import SseReader
from car_client.carctl.load.request import Request
from car_protocol.envelope import Failure, Notification, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.methods import CHUNK, PROGRESS
from tests.client.samples import ANSWER

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
REQUEST = Request(7, [1, 2, 3], 64)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**members: object) -> bytes:
    return chunk(b"data: " + json.dumps(members).encode() + b"\n\n")


def received(codec: HttpCodec, answer: bytes) -> Received:
    codec.encode(REQUEST)
    return codec.receive(answer)


def test_the_daemon_is_asked_with_a_line() -> None:
    line = CardCodec({"priority": "throughput"}).encode(REQUEST)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "infer_stream",
        "params": {"tokens": [1, 2, 3], "max_tokens": 64, "priority": "throughput"},
    }


def test_a_prompt_of_text_is_sent_as_text() -> None:
    assert json.loads(CardCodec({}).encode(Request(1, "Hi", 2)))["params"]["prompt"] == "Hi"


def test_chunks_count_and_the_response_ends_the_answer() -> None:
    codec = CardCodec({})
    lines = [
        encode_message(Notification(PROGRESS, {"id": 7, "phase": "prefill"})),
        encode_message(Notification(CHUNK, {"id": 7, "seq": 0, "text": "Hel"})),
        encode_message(Notification(CHUNK, {"id": 7, "seq": 1, "text": "lo"})),
    ]
    assert codec.receive(b"".join(lines)) == Received(2, None)
    ended = codec.receive(encode_message(Result(7, ANSWER))).end
    assert ended == End(
        ANSWER["usage"]["completion_tokens"], ANSWER["usage"]["prompt_tokens"], ANSWER["timings"]["queue_ms"]
    )


def test_an_error_of_the_daemon_says_its_message() -> None:
    line = encode_message(Failure(7, RpcError("overloaded").as_object()))
    with pytest.raises(LoadError, match="an error: the daemon has no room"):
        CardCodec({}).receive(line)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_whole_however_they_come(size: int) -> None:
    sent = b": a comment\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\n\n\ndata: not whole"
    reader = SseReader()
    found = [each for start in range(0, len(sent), size) for each in reader.feed(sent[start : start + size])]
    assert found == [b"one", b"two\nlines"]


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_a_body_in_chunks_is_put_together_however_it_comes(size: int) -> None:
    sent = HEAD + chunk(b"data: a\n\n") + b"4;extension=1\r\nwxyz\r\n" + chunk(b"")
    body = HttpBody()
    pieces = [body.feed(sent[start : start + size]) for start in range(0, len(sent), size)]
    assert b"".join(pieces) == b"data: a\n\nwxyz"
    assert body.ended


def test_a_body_without_chunks_lasts_until_the_connection_ends() -> None:
    body = HttpBody()
    assert body.feed(PLAIN_HEAD + b"data: a") == b"data: a"
    assert not body.ended


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found: check the address"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", "application/json instead of a stream"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no type instead of a stream"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "does not speak HTTP"),
        (b"x" * 70_000, "does not speak HTTP"),
        (HEAD + b"what?\r\n", "not valid HTTP"),
        (HEAD + event(error={"message": "too long"}), "an error: too long"),
        (HEAD + chunk(b"data: nonsense\n\n"), "not a completion"),
        (HEAD + event(choices="none"), "not a completion"),
    ],
)
def test_what_is_no_stream_of_completions_is_named(answer: bytes, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        received(HttpCodec("host", "/v1/completions", {}), answer)


def test_completions_are_asked_for_in_the_words_of_openai() -> None:
    head, _, content = (
        HttpCodec("host:80", "/v1/completions", {"temperature": 0}).encode(REQUEST).partition(b"\r\n\r\n")
    )
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: host:80\r\n")
    asked = json.loads(content)
    assert (asked["prompt"], asked["max_tokens"], asked["stream"]) == ([1, 2, 3], 64, True)
    assert asked["stream_options"] == {"include_usage": True}
    assert f"content-length: {len(content)}".encode() in head


def test_llama_server_is_asked_in_its_own_words() -> None:
    options = {"temperature": 0, "cache_prompt": False, "priority": "throughput"}
    asked = json.loads(HttpCodec("host", "/completion", options).encode(REQUEST).partition(b"\r\n\r\n")[2])
    assert (asked["n_predict"], asked["cache_prompt"], asked["temperature"]) == (64, False, 0)
    assert "priority" not in asked


def test_the_events_of_openai_count_with_what_their_usage_says() -> None:
    answer = HEAD + event(choices=[{"text": "a"}]) + event(choices=[{"text": ""}])
    answer += event(choices=[], usage={"completion_tokens": 5, "prompt_tokens": 3}) + chunk(b"data: [DONE]\n\n")
    assert received(HttpCodec("host", "/v1/completions", {}), answer + chunk(b"")) == Received(1, End(5, 3))


def test_the_events_of_llama_server_count_with_what_the_last_says() -> None:
    answer = HEAD + event(content="a", stop=False, tokens_predicted=1) + event(content="b", stop=False)
    answer += event(content="", stop=True, tokens_predicted=9, tokens_evaluated=4)
    assert received(HttpCodec("host", "/completion", {}), answer + chunk(b"")) == Received(2, End(9, 4))


def test_a_server_that_says_nothing_of_tokens_leaves_them_to_be_counted() -> None:
    codec = HttpCodec("host", "/v1/completions", {})
    assert received(codec, PLAIN_HEAD + b'data: {"choices":[{"text":"a"}]}\n\n') == Received(1, None)
    assert codec.closed() == End()


def test_the_next_answer_begins_anew() -> None:
    codec = HttpCodec("host", "/completion", {})
    received(codec, HEAD + event(content="a", stop=True, tokens_predicted=9))
    assert received(codec, HEAD + event(content="a") + chunk(b"")).end == End()


@pytest.mark.parametrize(
    "wrong", ["127.0.0.1:8080", "https://host", "http://", "unix:/x", "http://host:x", "http://h:0"]
)
def test_addresses_that_cannot_be_asked_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        parse_url(wrong)
