"""Streams of a client that does not read: chunks are merged, work is paused, and cancelled when it never reads."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from msgspec import structs

from car_base.ipc.frames import CallDelta, Extra
from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.memory_share import ClientMemoryLimit, MemoryShare
from car_daemon.connections.outbound import PAUSE_BYTES, OutboundBuffer
from car_protocol.answer import Answer, Logprob, Timings, Usage
from car_protocol.errors import RpcError
from car_protocol.limits import Limits
from tests.pace import HANG_S

Json = dict[str, Any]
LIMITS = Limits(slow_reader_ms=20, max_output_bytes=2 * PAUSE_BYTES, max_frame_bytes=1024)


class Pipe:
    """A transport with a client that reads on the test's command."""

    def __init__(self) -> None:
        self.read = b""
        self._waiting = b""
        self.reads = True
        self.writes = 0
        self.outbound: OutboundBuffer | None = None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def write(self, data: bytes) -> None:
        self.writes += 1
        if self.reads:
            self.read += data
            return
        self._waiting += data
        assert self.outbound is not None
        self.outbound.block()

    def read_some(self, count: int) -> None:
        """Read a number of bytes."""
        self.read, self._waiting = self.read + self._waiting[:count], self._waiting[count:]

    def go_on(self) -> None:
        """Read everything."""
        self.reads = True
        self.read, self._waiting = self.read + self._waiting, b""
        assert self.outbound is not None
        self.outbound.unblock()

    @property
    def messages(self) -> list[Json]:
        """Everything that was read."""
        return [json.loads(line) for line in self.read.splitlines()]


class Client:
    """A client with one stream, and a record of the buffer's calls to it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.pipe = Pipe()
        self.did: list[str] = []
        self.ended = asyncio.Event()
        self.abandoned = asyncio.Event()
        self.outbound = OutboundBuffer(
            limits, lambda measure: MemoryShare(ClientMemoryLimit(), lambda: (-1, 0), measure, self._abandon)
        )
        self.pipe.outbound = self.outbound
        self.outbound.open(cast(asyncio.Transport, self.pipe))
        self.stream = self.new_stream(1)

    def new_stream(self, request_id: int) -> RpcCall:
        stream = RpcCall(request_id, 0, self._end, self.outbound)
        stream.work = CallWork(
            cancel=lambda reason: stream.error(RpcError(reason)),
            pause=lambda: self.did.append(f"paused {request_id}"),
            unpause=lambda: self.did.append(f"unpaused {request_id}"),
        )
        return stream

    def _end(self, call: RpcCall, response: bytes) -> None:
        self.did.append(f"ended {call.id}")
        self.ended.set()
        self.outbound.send(response)

    def _abandon(self) -> None:
        self.did.append("abandoned")
        self.abandoned.set()

    def block(self) -> None:
        """Stop reading, and have the first byte wait."""
        self.pipe.reads = False
        self.stream.chunk("first", None)
        self.outbound.flush()

    @property
    def chunks(self) -> list[Json]:
        """The params of the chunks that were read."""
        return [message["params"] for message in self.pipe.messages if "params" in message]


def run(scenario: Callable[[Client], None]) -> Client:
    """Play a scenario in a loop; return the client as it is then."""

    async def play() -> Client:
        client = Client()
        scenario(client)
        client.outbound.flush()
        return client

    return asyncio.run(play())


def likely(token: int) -> Extra:
    return Extra(tokens=[token], logprobs=[Logprob(token, "x", -1.0, [])], reasoning=f"r{token}")


async def test_frames_of_one_turn_go_out_together_at_its_end() -> None:
    client = Client()
    client.outbound.send(b"1\n")
    client.outbound.send(b"2\n")
    assert client.pipe.read == b""
    await asyncio.sleep(0)
    assert client.pipe.read == b"1\n2\n"


def test_chunks_go_out_one_by_one_while_the_client_reads() -> None:
    def scenario(client: Client) -> None:
        client.stream.chunk("a", None)
        client.stream.chunk("b", likely(1))

    chunks = run(scenario).chunks
    assert [(chunk["seq"], chunk["text"]) for chunk in chunks] == [(0, "a"), (1, "b")]


def test_deferred_chunks_go_out_as_one_with_all_extras_in_order() -> None:
    def scenario(client: Client) -> None:
        client.block()
        for token in range(5):
            client.stream.chunk(str(token), likely(token))
        client.pipe.go_on()
        client.stream.chunk("end", None)

    first, merged, last = run(scenario).chunks
    assert [chunk["seq"] for chunk in (first, merged, last)] == [0, 1, 2]
    assert (merged["text"], merged["tokens"], merged["reasoning"]) == ("01234", [0, 1, 2, 3, 4], "r0r1r2r3r4")
    assert [each["token"] for each in merged["logprobs"]] == [0, 1, 2, 3, 4]
    assert last["text"] == "end"


def test_pieces_of_a_call_are_merged_while_their_client_does_not_read() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("One", Extra(calls=[CallDelta(0, id="a", name="f")]))
        for piece in ('{"a"', ": ", "1}"):
            client.stream.chunk("", Extra(calls=[CallDelta(0, arguments=piece)]))
        client.stream.chunk("", Extra(calls=[CallDelta(0, ended=True)]))
        client.stream.chunk("Two", None)
        assert client.stream.chunks == 3
        client.pipe.go_on()

    _, call, text = run(scenario).chunks
    assert (call["seq"], call["text"]) == (1, "One")
    assert call["tool_calls"] == [{"index": 0, "id": "a", "name": "f", "arguments": '{"a": 1}'}]
    assert (text["seq"], text["text"], "tool_calls" in text) == (2, "Two", False)


def test_several_answers_are_merged_each_by_itself() -> None:
    def scenario(client: Client) -> None:
        client.block()
        for index, text in ((1, "a"), (0, "b"), (1, "c"), (0, "d")):
            client.stream.chunk(text, None, index)
        assert client.stream.chunks == 3
        client.pipe.go_on()

    chunks = run(scenario).chunks
    assert [(chunk["seq"], chunk.get("index"), chunk["text"]) for chunk in chunks] == [
        (0, None, "first"),
        (1, 1, "ac"),
        (2, 0, "bd"),
    ]


def test_an_answer_that_begins_while_the_others_are_paused_is_paused_too() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("a" * PAUSE_BYTES, None, 0)
        client.stream.chunk("a", None, 0)
        client.stream.chunk("b", None, 1)
        client.stream.chunk("b", None, 1)
        client.did.append("reads")
        client.pipe.go_on()

    assert run(scenario).did == ["paused 1", "paused 1", "reads", "unpaused 1"]


def test_a_stream_that_ends_while_it_waits_is_complete_and_counts_its_chunks() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("a", None)
        client.stream.chunk("b", None)
        timings = Timings(0, 0, 0, 0, 0)
        client.stream.result(
            Answer(
                finish_reason="stop", model="m", seed=1, usage=Usage(1, 0, 3), timings=timings,
                chunks=client.stream.chunks,
            )
        )  # fmt: skip
        client.pipe.go_on()

    client = run(scenario)
    assert [chunk["text"] for chunk in client.chunks] == ["first", "ab"]
    assert client.pipe.messages[-1]["result"]["chunks"] == 2


def test_a_stream_that_defers_too_much_is_paused_once_and_continued_when_its_client_has_read() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("a" * PAUSE_BYTES, None)
        client.stream.chunk("a", None)
        client.did.append("reads")
        client.pipe.go_on()
        client.stream.chunk("z", None)

    client = run(scenario)
    assert client.did == ["paused 1", "reads", "unpaused 1"]
    assert len("".join(chunk["text"] for chunk in client.chunks)) == len("first") + PAUSE_BYTES + 2


def test_a_stream_stays_paused_while_its_client_reads_too_little() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("a" * PAUSE_BYTES, None)
        client.outbound.unblock()
        assert client.did == ["paused 1"]

    assert run(scenario).outbound.blocked


def test_a_paused_stream_that_is_not_read_in_time_ends_and_its_deferred_chunks_are_dropped() -> None:
    async def play() -> Client:
        client = Client()
        client.block()
        client.stream.chunk("a" * PAUSE_BYTES, None)
        await client.ended.wait()
        client.pipe.go_on()
        client.outbound.flush()
        return client

    client = asyncio.run(play())
    assert client.did == ["paused 1", "ended 1"]
    assert [chunk["text"] for chunk in client.chunks] == ["first"]
    assert client.pipe.messages[-1]["error"]["code"] == 1007


def test_streams_that_defer_more_than_the_limit_end_at_once() -> None:
    def scenario(client: Client) -> None:
        client.block()
        other = client.new_stream(2)
        other.chunk("b", None)
        client.stream.chunk("a" * LIMITS.max_output_bytes, None)

    assert run(scenario).did == ["ended 2", "ended 1"]


def test_a_large_answer_that_waits_ends_no_stream() -> None:
    def scenario(client: Client) -> None:
        client.pipe.reads = False
        client.outbound.send(b"x" * 3 * LIMITS.max_output_bytes + b"\n")
        client.outbound.flush()
        client.stream.chunk("a", None)
        assert client.did == ["paused 1"]
        client.pipe.go_on()

    assert run(scenario).did == ["paused 1", "unpaused 1"]


TOO_MUCH = b"x" * 8 * LIMITS.max_output_bytes
PATIENCE_S = LIMITS.slow_reader_ms / 1000


def flooded(limits: Limits = LIMITS) -> Client:
    """Return a client that does not read and is sent too much."""
    client = Client(limits)
    client.pipe.reads = False
    client.outbound.send(TOO_MUCH)
    return client


async def test_a_client_that_leaves_too_much_unread_for_too_long_is_dropped_and_not_sooner() -> None:
    client = flooded()
    for _ in range(2):
        client.outbound.flush()
        client.outbound.send(b"y")
    assert client.did == []
    async with asyncio.timeout(HANG_S):
        await client.abandoned.wait()
    assert client.did == ["abandoned"]
    client.outbound.send(b"y")
    client.outbound.flush()
    assert not client.pipe.read


async def test_a_client_that_reads_a_long_answer_slowly_is_not_dropped_even_where_more_comes_than_it_reads() -> None:
    # Long enough for a busy machine, where a pause takes longer than it should.
    limits = structs.replace(LIMITS, slow_reader_ms=800)
    client = flooded(limits)
    for _ in range(8):
        client.outbound.flush()
        client.pipe.read_some(1000)
        client.outbound.send(b"y" * 2000)
        await asyncio.sleep(limits.slow_reader_ms / 1000 / 4)  # slow, but it reads
    client.outbound.flush()
    client.pipe.go_on()
    assert client.did == []
    assert client.pipe.read == TOO_MUCH + b"y" * 16_000


def test_unread_frames_are_joined_and_written_at_once_when_the_client_reads() -> None:
    def scenario(client: Client) -> None:
        client.pipe.reads = False
        for number in range(100):
            client.outbound.send(b"%d\n" % number)
            client.outbound.flush()
        assert client.pipe.writes == 1
        client.pipe.go_on()
        assert client.pipe.writes == 2

    assert run(scenario).pipe.read == b"".join(b"%d\n" % number for number in range(100))


async def test_bytes_that_a_client_once_left_unread_do_not_count_against_it_later() -> None:
    client = Client()
    for _ in range(2):
        client.pipe.reads = False
        for frame in (TOO_MUCH, b"y", b"y"):
            client.outbound.send(frame)
            client.outbound.flush()
        client.pipe.go_on()
        await asyncio.sleep(2 * PATIENCE_S)  # it has nothing to read
    assert client.did == []


async def test_the_progress_of_a_connection_that_ended_is_not_checked() -> None:
    client = flooded()
    client.outbound.flush()
    client.outbound.discard()
    await asyncio.sleep(2 * PATIENCE_S)  # nothing announces what does not happen
    assert client.did == []


def test_a_cancelled_stream_reports_its_number_of_chunks() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("a", None)
        assert client.stream.chunks == 2
        client.stream.error(RpcError("cancelled", chunks=client.stream.chunks))
        client.stream.chunk("late", None)
        client.pipe.go_on()

    client = run(scenario)
    assert [chunk["text"] for chunk in client.chunks] == ["first", "a"]
    assert client.pipe.messages[-1]["error"]["data"]["chunks"] == 2


def test_nothing_is_timed_for_a_connection_that_is_gone() -> None:
    async def play() -> list[str]:
        client = Client()
        client.block()
        client.stream.chunk("a" * PAUSE_BYTES, None)
        client.outbound.discard()
        await asyncio.sleep(2 * LIMITS.slow_reader_ms / 1000)
        return client.did

    assert asyncio.run(play()) == ["paused 1"]


async def test_corked_frames_go_out_with_the_flush_and_later_ones_by_themselves() -> None:
    client = Client()
    client.outbound.corked = True
    client.outbound.send(b"1\n")
    await asyncio.sleep(0)
    assert client.pipe.read == b""
    client.outbound.flush()
    assert client.pipe.read == b"1\n"
    client.outbound.send(b"2\n")
    await asyncio.sleep(0)
    assert client.pipe.read == b"1\n2\n"
