"""Signs of life of a stream whose prompt is read: clients that count events see an event, where a comment is none."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.results import Answer as ClientAnswer
from car_client.results import Chunk, ToolCallDelta
from car_http.answering import Pace
from car_http.dialects.anthropic.writer import MessagesWriter
from car_http.dialects.job import Writer
from car_http.dialects.openai_chat_writer import ChatWriter
from car_http.dialects.responses.tools import Tool, read_tools
from car_http.dialects.responses.writer import Facts, ResponsesWriter
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.door.support import Answer, OfflineDoor
from tests.e2e.support import conversation

MOST_S = 30
STEP_S = 5.0
STEPS = 60  # five minutes, after which Codex gives up
CHAT: dict[str, Any] = {"model": "guide", "messages": conversation("Hi"), "stream": True}
PROMPT: dict[str, Any] = {"model": "guide", "prompt": "Hi", "stream": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": PROMPT,
    "/infill": {"input_prefix": "a", "input_suffix": "b", "stream": True},
    "/completion": {"prompt": "Hi", "stream": True},
    "/v1/responses": {"model": "guide", "input": "Hi", "stream": True},
    "/v1/messages": CHAT | {"max_tokens": 9},
    "/api/chat": CHAT,
    "/api/generate": PROMPT,
}


class Clock:
    """Timers, and a time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[asyncio.TimerHandle] = []

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Set a timer."""
        self.timers.append(asyncio.TimerHandle(self.now + seconds, act, (), asyncio.get_running_loop()))
        return self.timers[-1]

    async def advance(self, seconds: float) -> None:
        """Let time pass, and what its timers began go on."""
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer.when() <= until and not timer.cancelled()]:
            first = min(due, key=asyncio.TimerHandle.when)
            self.timers.remove(first)
            self.now = first.when()
            first._run()
            await settled()
        self.now = until


async def settled() -> None:
    """Let the loop do what is ready: bytes that are in a socket, and the task that they wake up."""
    for _ in range(5):
        await asyncio.sleep(0)


def events_of(path: str, data: bytes) -> list[Any]:
    """Return the events, or the lines, in a part of a stream: comments are none."""
    lines = data.splitlines()
    if not path.startswith("/api/"):
        lines = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line and line != b"[DONE]"]


async def watched(door: OfflineDoor, fake: FakeDaemon, clock: Clock, path: str, *, reads: bool) -> list[Any]:
    """Return the events of a stream whose prompt takes five minutes, after a check of their times."""
    fake.silent_after = 0
    answer = Answer()
    body = json.dumps(BODIES[path]).encode()
    task = asyncio.create_task(door.into(answer, "POST", path, body, {"content-type": "application/json"}))
    await fake.saw("infer_stream")
    shown, last = 0, 0.0
    for step in range(1, STEPS + 1):
        if reads:
            fake.read_on(step, STEPS)
            while not path.startswith("/api/") and f"prefill {step}/{STEPS}" not in answer.comments:
                answer.began.clear()
                await answer.began.wait()
        await clock.advance(STEP_S)
        if (count := len(events_of(path, answer.body))) > shown:
            shown, last = count, clock.now
        assert clock.now - last <= MOST_S - STEP_S, answer.body
    fake.drop()
    await task
    return events_of(path, answer.body)[:shown]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("reads", [True, False])
async def test_a_stream_has_an_event_at_least_every_30_s_while_its_prompt_is_read_or_it_waits(
    fake: FakeDaemon, path: str, *, reads: bool
) -> None:
    clock = Clock()
    async with OfflineDoor(fake.path, Path("none"), pace=Pace(later=clock.later)) as door:
        events = await watched(door, fake, clock, path, reads=reads)
    if path == "/v1/messages":
        assert events == [{"type": "ping"}] * len(events)
    elif path == "/v1/responses":
        kinds = ["response.created"] + ["response.in_progress"] * (len(events) - 1)
        assert [event["type"] for event in events] == kinds
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    elif path == "/v1/chat/completions":
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert deltas == [{"role": "assistant", "content": ""}] + [{}] * (len(events) - 1)
        assert {choice["finish_reason"] for event in events for choice in event["choices"]} == {None}
    elif path == "/v1/completions":
        assert [choice["text"] for event in events for choice in event["choices"]] == [""] * len(events)
    elif path in ("/infill", "/completion"):
        assert [(event["content"], event["stop"]) for event in events] == [("", False)] * len(events)
    else:
        shown = [event["message"]["content"] if path == "/api/chat" else event["response"] for event in events]
        assert (shown, {event["done"] for event in events}) == ([""] * len(events), {False})


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_ollamas_first_line_comes_within_a_second_while_the_prompt_is_read(fake: FakeDaemon, path: str) -> None:
    clock, answer = Clock(), Answer()
    fake.silent_after = 0
    async with OfflineDoor(fake.path, Path("none"), pace=Pace(later=clock.later)) as door:
        body = json.dumps(BODIES[path]).encode()
        task = asyncio.create_task(door.into(answer, "POST", path, body, {"content-type": "application/json"}))
        await fake.saw("infer_stream")
        await settled()
        assert not answer.body
        await clock.advance(1.0)
        assert [line["done"] for line in answer.lines] == [False]
        fake.drop()
        await task


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("/v1/chat/completions", {"type": "function", "function": {"name": "patch"}}),
        ("/v1/responses", {"type": "custom", "name": "patch"}),
        ("/v1/messages", {"name": "patch", "input_schema": {"type": "object"}}),
        ("/api/chat", {"function": {"name": "patch"}}),
    ],
)
async def test_a_call_that_is_shown_when_it_is_whole_has_events_while_it_is_written(
    fake: FakeDaemon, path: str, tool: dict[str, Any]
) -> None:
    clock, answer = Clock(), Answer()
    fake.pieces = [{"tool_calls": [{"index": 0, "id": "c", "name": "patch", "arguments": '{"input":"'}]}]
    fake.silent_after = 1
    async with OfflineDoor(fake.path, Path("none"), pace=Pace(later=clock.later)) as door:
        body = json.dumps(BODIES[path] | {"tools": [tool]}).encode()
        task = asyncio.create_task(door.into(answer, "POST", path, body, {"content-type": "application/json"}))
        await fake.saw("infer_stream")
        await settled()
        seen = 0
        for _ in range(4):
            for _ in range(round(MOST_S / STEP_S)):
                fake.go_on({"tool_calls": [{"index": 0, "arguments": "a line "}]})
                await settled()
                await clock.advance(STEP_S)
            seen, before = len(events_of(path, answer.body)), seen
            assert seen > before
        fake.drop()
        await task


async def test_a_stream_that_writes_has_no_signs_of_life(fake: FakeDaemon) -> None:
    clock, answer = Clock(), Answer()
    fake.silent_after = 1
    async with OfflineDoor(fake.path, Path("none"), pace=Pace(later=clock.later)) as door:
        body = json.dumps(CHAT).encode()
        headers = {"content-type": "application/json"}
        task = asyncio.create_task(door.into(answer, "POST", "/v1/chat/completions", body, headers))
        while b"Hel" not in answer.body:
            answer.began.clear()
            await answer.began.wait()
        for number in range(20):
            await clock.advance(STEP_S)
            fake.go_on({"text": f"<{number}>"})
            while f"<{number}>".encode() not in answer.body:
                answer.began.clear()
                await answer.began.wait()
        fake.drop()
        await task
    deltas = [choice["delta"] for event in answer.events[:-1] for choice in event["choices"]]
    assert {} not in deltas
    assert all(timer.cancelled() for timer in clock.timers)


TEXT = [Chunk(id=1, seq=0, text="Hel"), Chunk(id=1, seq=1, text="lo")]
CALL = [
    Chunk(
        id=1, seq=0, text="", tool_calls=[ToolCallDelta(index=0, id="c", name="patch", arguments='{"input":"a line"}')]
    )
]


def stream_of(writer: Writer, chunks: list[Chunk]) -> Any:
    """Return a transport that answers with a stream, which has signs of life before and after each piece."""
    httpx = pytest.importorskip("httpx2")
    ended = msgspec.convert(ANSWER, ClientAnswer)
    pieces = [writer.begin(), *(writer.alive() + writer.chunk(each) for each in chunks), writer.alive()]
    data = b"".join(pieces) + writer.end(ended)
    headers = {"content-type": "text/event-stream"}
    return httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=data))


@pytest.mark.parametrize(("chunks", "text"), [(TEXT, "Hello"), (CALL, "")])
def test_openais_client_reads_a_response_with_signs_of_life_in_it(chunks: list[Chunk], text: str) -> None:
    openai = pytest.importorskip("openai")
    tools = read_tools([Tool(type="function", name="patch")])
    http = openai.DefaultHttpxClient(transport=stream_of(ResponsesWriter(Facts("guide", {}, tools.origins)), chunks))
    with openai.OpenAI(base_url="http://card", api_key="x", http_client=http) as client:
        with client.responses.stream(model="guide", input="Hi") as stream:
            final = stream.until_done().get_final_response()
        assert final.output_text == text
        assert [getattr(item, "arguments", None) for item in final.output] == (
            [None] if text else ['{"input":"a line"}']
        )


@pytest.mark.parametrize(("chunks", "text"), [(TEXT, "Hello"), (CALL, "")])
def test_openais_client_reads_a_chat_with_signs_of_life_in_it(chunks: list[Chunk], text: str) -> None:
    openai = pytest.importorskip("openai")
    http = openai.DefaultHttpxClient(transport=stream_of(ChatWriter("guide"), chunks))
    with openai.OpenAI(base_url="http://card", api_key="x", http_client=http) as client:
        with client.chat.completions.stream(model="guide", messages=conversation("Hi")) as stream:
            message = stream.get_final_completion().choices[0].message
        assert (message.content or "") == text
        assert [call.function.arguments for call in message.tool_calls or []] == (
            [] if text else ['{"input":"a line"}']
        )


@pytest.mark.parametrize(("chunks", "content"), [(TEXT, "Hello"), (CALL, {"input": "a line"})])
def test_anthropics_client_reads_a_message_with_signs_of_life_in_it(chunks: list[Chunk], content: Any) -> None:
    anthropic = pytest.importorskip("anthropic")
    http = anthropic.DefaultHttpxClient(transport=stream_of(MessagesWriter("guide"), chunks))
    with anthropic.Anthropic(base_url="http://card", api_key="x", http_client=http) as client:
        with client.messages.stream(model="guide", max_tokens=9, messages=conversation("Hi")) as stream:
            (block,) = stream.get_final_message().content
        assert (block.text if block.type == "text" else block.input) == content
