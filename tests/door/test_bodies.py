"""Bodies: how many values one may have, and how the memory for all of them is shared by the keys."""

import asyncio
import gc
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from car_client.door.keys import Key, add_key
from car_http.crowds import BodyMemory
from car_http.dialects.common import called_arguments, decode
from car_http.dialects.openai_chat import ChatRequest
from car_http.exchange import MAX_BODY_BYTES, Exchange, Message
from car_http.guard import RequestHead
from car_http.problems import Problem
from car_protocol.errors import RpcError
from car_protocol.limits import MAX_MEMBERS
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import Answer, DoorProcess, OfflineDoor, door_before
from tests.e2e.support import conversation
from tests.pace import HANG_S, until

CHAT = "/v1/chat/completions"
MANY = b"[" + b",".join([b"[]"] * MAX_MEMBERS) + b"]"
# The first member is of a wrong type: a decoder would name it.
BODIES = {
    "template arguments": b'{"messages":1,"chat_template_kwargs":{"a":%s}}',
    "a tool's parameters": b'{"messages":1,"tools":[{"function":{"name":"f","parameters":{"a":%s}}}]}',
    "a member that is dropped": b'{"messages":1,"anything":%s}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_of_too_many_values_is_refused_before_they_are_decoded(
    offline: OfflineDoor, fake: FakeDaemon, body: bytes
) -> None:
    answer = await offline.post(CHAT, body % MANY)
    assert (answer.status, answer.json["error"]["code"]) == (400, "limit")
    assert answer.json["error"]["message"] == (
        "the body has more than 200,000 objects, arrays and texts: send smaller schemas and fewer tools"
    )
    assert fake.calls == []


def test_brackets_in_the_texts_of_a_body_count_for_nothing() -> None:
    text = "[{:" * MAX_MEMBERS
    body = msgspec.json.encode({"messages": conversation(text)})
    assert decode(body, ChatRequest).messages[0].content == text


def test_a_body_that_is_not_json_is_refused_as_such_however_many_brackets_it_has() -> None:
    with pytest.raises(Problem) as caught:
        decode(b"[" * (2 * MAX_MEMBERS), ChatRequest)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


async def test_a_member_nests_as_deep_as_it_can_be_passed_on_and_else_is_the_clients_fault(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    def body(depth: int) -> bytes:
        tool = {"type": "function", "function": {"name": "f", "parameters": "DEEP"}}
        asked = {"messages": conversation("a"), "model": "guide", "tools": [tool]}
        return msgspec.json.encode(asked).replace(b'"DEEP"', b'{"a":' * depth + b"1" + b"}" * depth)

    answers = [await offline.post("/v1/chat/completions", body(depth)) for depth in range(900, 1000)]
    assert [answer.status for answer in answers] == sorted(answer.status for answer in answers)
    assert {answer.status for answer in answers} == {200, 400}
    refused = {answer.json["error"]["message"] for answer in answers if answer.status == 400}
    assert refused == {f"{at}nests too deeply: send its inner part as a text" for at in ("tools: ", "the body ")}


def test_the_arguments_of_a_call_are_checked_without_an_object_for_each_of_their_values() -> None:
    """They are a text of the body, whose bound does not count them; a number of any size is passed on."""
    for text in ('{"a":1e999}', f'{{"a":{MANY.decode()}}}'):
        assert called_arguments(text) == text
    for text in ("[]", "1", '{"a":', '{"a":1} x'):
        assert msgspec.json.decode(called_arguments(text)) == {"arguments": text}
    assert called_arguments(" ") == called_arguments(None) == "{}"


class Sent:
    """A body of a key, that came so far; it keeps the error by which it gives way."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.problem: Problem | None = None

    def give_way(self, problem: Problem) -> None:
        """As an exchange."""
        self.problem = problem

    def come(self, memory: BodyMemory, size: int) -> None:
        """Send more of the body."""
        memory.take(self.owner, self.give_way, size)


def test_where_memory_is_short_the_newest_body_of_the_key_with_most_gives_way() -> None:
    memory = BodyMemory(100)
    hogs = [Sent("hog") for _ in range(3)]
    for body in hogs:
        body.come(memory, 30)
    other = Sent("other")
    other.come(memory, 40)
    assert [body.problem is not None for body in (*hogs, other)] == [False, False, True, False]
    assert hogs[2].problem is not None
    assert (hogs[2].problem.status, hogs[2].problem.code) == (503, "too_many_bytes")
    with pytest.raises(Problem):
        Sent("hog").come(memory, 1)
    memory.give_back(other.give_way)
    Sent("hog").come(memory, 40)


def test_a_body_that_grows_beyond_the_share_of_its_key_leaves_the_older_ones_of_the_key_alone() -> None:
    memory = BodyMemory(100)
    first, second, other = Sent("hog"), Sent("hog"), Sent("other")
    first.come(memory, 30)
    second.come(memory, 20)
    other.come(memory, 45)
    first.come(memory, 10)
    assert (first.problem, other.problem) == (None, None)
    assert second.problem is not None


class Upload:
    """An exchange whose client sends its body on `go_on`, and the task that reads it."""

    def __init__(self, memory: BodyMemory, owner: str, size: int) -> None:
        self.go_on = asyncio.Event()
        self._pieces = [b"x" * size, b""]
        self.exchange = Exchange(RequestHead("POST", "/", {}, unix=True), self._receive, self._send, memory)
        self.exchange.key = Key(owner, "x" * 16)
        self.reading = asyncio.create_task(self._read())
        self.waiting = asyncio.Event()  # for the rest of the body

    async def _read(self) -> bytes:
        with self.exchange.giving_way():
            return await self.exchange.body()

    async def _receive(self) -> Message:
        if len(self._pieces) == 1:
            self.waiting.set()
            await self.go_on.wait()
        return {"type": "http.request", "body": self._pieces.pop(0), "more_body": bool(self._pieces)}

    async def _send(self, message: Message) -> None:
        raise AssertionError(message)


async def test_an_unfinished_body_that_gives_way_is_refused_and_the_other_keys_body_goes_in() -> None:
    memory = BodyMemory(100)
    first, second = Upload(memory, "hog", 48), Upload(memory, "hog", 48)
    await first.waiting.wait()
    await second.waiting.wait()
    other = Upload(memory, "other", 40)
    with pytest.raises(Problem) as caught:
        await second.reading
    assert (caught.value.status, caught.value.headers["connection"]) == (503, "close")
    for each in (first, other):
        each.go_on.set()
        assert await each.reading


async def test_a_cancelled_request_that_did_not_give_way_stays_cancelled() -> None:
    upload = Upload(BodyMemory(100), "hog", 48)
    await upload.waiting.wait()
    upload.reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload.reading


def chat(size: int, **members: Any) -> bytes:
    """Return the body of a chat of a size; the door drops what fills it."""
    body = {"model": "guide", "messages": conversation("Hi"), "metadata": "", **members}
    return msgspec.json.encode(body | {"metadata": "x" * (size - len(msgspec.json.encode(body)))})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_that_is_being_answered_gives_way_too(fake: FakeDaemon, folder: Path, *, stream: bool) -> None:
    fake.silent.add("infer")
    fake.silent_after = 1
    headers = {"content-type": "application/json", "host": "localhost"}
    headers["authorization"] = f"Bearer {add_key(folder / 'keys', 'hog').secret}"
    async with OfflineDoor(fake.path, folder / "keys", bodies=BodyMemory(10_000)) as door:
        held = Answer()
        body = chat(9_000, stream=stream)
        answering = asyncio.create_task(door.into(held, "POST", CHAT, body, headers, unix=False))
        await (held.began.wait() if stream else fake.saw("infer"))
        other = await door.post("/v1/embeddings", {"input": ["a", "b"], "user": "x" * 2_000})
        await answering
        assert other.status == 200
        assert held.status == (200 if stream else 503)
        error = held.events[-1]["error"] if stream else held.json["error"]
        assert error["code"] == "too_many_bytes"
        await asyncio.to_thread(fake.wait_until_gone, 1)
        held.left.set()


async def test_a_stream_that_gives_way_ends_without_an_event_where_its_client_does_not_read(
    fake: FakeDaemon, folder: Path
) -> None:
    """Its memory is needed before the client reads again."""
    fake.silent_after = 1
    headers = {"content-type": "application/json", "host": "localhost"}
    headers["authorization"] = f"Bearer {add_key(folder / 'keys', 'hog').secret}"
    async with OfflineDoor(fake.path, folder / "keys", bodies=BodyMemory(10_000)) as door:
        held = Answer()
        body = chat(9_000, stream=True)
        answering = asyncio.create_task(door.into(held, "POST", CHAT, body, headers, unix=False))
        await held.began.wait()
        held.reads.clear()
        assert (await door.post("/v1/embeddings", {"input": ["a", "b"], "user": "x" * 2_000})).status == 200
        await answering
        assert held.status == 200
        assert not any("error" in event for event in held.events)
        assert door.metrics.disconnects == 1
        held.left.set()


@pytest.mark.slow
def test_unfinished_bodies_of_one_key_leave_room_for_another_keys(fake: FakeDaemon, folder: Path) -> None:
    """The newest of two dozen of the longest ones is refused."""
    with door_before(folder, fake.path) as door, ExitStack() as stack:

        def send(key: str, data: bytes) -> socket.socket:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            client.sendall(head.encode() + data[:-10])
            return client

        hogs = [send(door.key, b" " * MAX_BODY_BYTES) for _ in range(24)]
        body = chat(3_000_000)
        other = send(door.add_key("other"), body)
        assert hogs[-1].recv(64).startswith(b"HTTP/1.1 503")
        other.sendall(body[-10:])
        assert other.recv(64).startswith(b"HTTP/1.1 200")
        hogs[0].sendall(b" " * 9 + b"1")
        assert hogs[0].recv(64).startswith(b"HTTP/1.1 400")


PARTS: dict[str, Any] = {"template": {"canary": []}}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "whole": (CHAT, {"messages": conversation("Hi"), "chat_template_kwargs": PARTS}, "infer"),
    "stream": (CHAT, {"messages": conversation("Hi"), "chat_template_kwargs": PARTS, "stream": True}, "infer_stream"),
    "count": (
        "/v1/messages/count_tokens",
        {"messages": conversation("Hi"), "tools": [{"name": "f", "input_schema": PARTS}]},
        "tokenize",
    ),
    "embeddings": ("/v1/embeddings", {"input": ["canary"]}, "embed"),
    "several prompts": ("/v1/completions", {"prompt": ["canary", "b"]}, "infer"),
}


@pytest.fixture
def uncollected() -> Iterator[list[object]]:
    """The objects that only the collector of cycles frees; it does not run before `gc.collect`."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.enable()
    gc.garbage.clear()


VALUES = [f"{number}" for number in range(MAX_MEMBERS // 2 + 7)]
FUNCTION = {"name": "f", "parameters": {"enum": VALUES}}
HI = conversation("Hi")
HELD: dict[str, tuple[str, dict[str, Any], str]] = {
    "template arguments": (CHAT, {"messages": HI, "chat_template_kwargs": {"a": VALUES}}, "infer"),
    "a tool": (CHAT, {"messages": HI, "tools": [{"type": "function", "function": FUNCTION}], "stream": True}, ""),
    "a schema": (
        CHAT,
        {"messages": HI, "response_format": {"type": "json_object", "schema": {"enum": VALUES}}},
        "infer",
    ),
    "Responses": ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", **FUNCTION}], "stream": True}, ""),
    "metadata": ("/v1/responses", {"input": "Hi", "metadata": {"a": VALUES}}, "infer"),
    "messages": (
        "/v1/messages",
        {"messages": HI, "max_tokens": 9, "tools": [{"name": "f", "input_schema": {"enum": VALUES}}]},
        "infer",
    ),
    "tokens of messages": (
        "/v1/messages/count_tokens",
        {"messages": HI, "tools": [{"name": "f", "input_schema": {"enum": VALUES}}]},
        "tokenize",
    ),
    "Ollama": ("/api/chat", {"messages": HI, "format": {"enum": VALUES}, "stream": False}, "infer"),
    "a prompt": ("/v1/completions", {"prompt": list(range(len(VALUES)))}, "infer"),
    "several prompts": ("/v1/completions", {"prompt": ["a", "b"], "json_schema": {"enum": VALUES}}, "infer"),
    "a decision": (
        "/v1/decisions",
        {
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_json", "data": VALUES}]}],
            "questions": [{"type": "predicate", "name": "a", "instructions": "Is it?"}],
        },
        "decide",
    ),
    "TypeSafe's decision": (
        "/v1/systemone",
        {"state": VALUES, "questions": {"a": {"type": "noul", "instructions": "Is it?"}}},
        "decide",
    ),
}


@pytest.mark.parametrize("case", HELD)
async def test_the_values_of_a_body_are_gone_once_it_is_sent_on(
    offline: OfflineDoor, fake: FakeDaemon, case: str
) -> None:
    """Many requests may be in flight, and values take many times the memory of their text."""
    path, body, method = HELD[case]
    fake.silent |= {"infer", "tokenize", "decide"}
    fake.silent_after = 0
    data, answer = msgspec.json.encode({"model": "guide", **body}), Answer()
    task = asyncio.create_task(offline.into(answer, "POST", path, data, {"content-type": "application/json"}))
    await fake.saw(method or "infer_stream")
    fake.calls.clear()
    gc.collect()
    values = [each for each in gc.get_objects() if isinstance(each, list) and len(each) == len(VALUES)]
    assert [each for each in values if each is not VALUES] == []
    answer.left.set()
    await task


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_body_is_freed_with_its_answer(
    offline: OfflineDoor, fake: FakeDaemon, uncollected: list[object], case: str
) -> None:
    """Not with the next run of the collector: an error keeps the frames that it went through, and they the body."""
    path, body, method = REFUSED[case]
    fake.answers[method] = RpcError("overloaded")
    before = asyncio.all_tasks()
    assert (await offline.post(path, {"model": "guide", **body})).status in (429, 529)
    if cancelled := asyncio.all_tasks() - before:
        await asyncio.wait(cancelled)
    del cancelled
    gc.collect()
    kept = [each for each in uncollected if isinstance(each, list | dict) and "canary" in each]
    assert kept == []


MIB = 1024 * 1024


def unfinished(door: DoorProcess, *, chunked: bool) -> socket.socket:
    """Return a connection that has sent most of a long body."""
    connection = socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {door.key}\r\n"
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {MAX_BODY_BYTES}"
    connection.sendall(f"{head}Content-Type: application/json\r\n{length}\r\n\r\n".encode())
    piece = b" " * 0x10000
    for _ in range(MAX_BODY_BYTES // len(piece) - 4):
        connection.sendall(b"10000\r\n%b\r\n" % piece if chunked else piece)
    return connection


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="another C library")
def test_the_memory_of_long_bodies_goes_back_to_the_system(fake: FakeDaemon, folder: Path) -> None:
    with door_before(folder, fake.path) as door:
        process = psutil.Process(door.process.pid)
        idle = process.memory_info().rss
        for chunked in (False, True, False):
            with ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(unfinished(door, chunked=chunked))
                until(lambda: process.memory_info().rss > idle + 120 * MIB)
        until(lambda: process.memory_info().rss < idle + 40 * MIB)
