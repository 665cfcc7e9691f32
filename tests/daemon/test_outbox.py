"""What happens to the streams of a client that does not read: merged, parked, given up; and how they come back."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from car_daemon.engine.frames import Extra
from car_daemon.exchange import Exchange, Work
from car_daemon.held import HeldBytes, Share
from car_daemon.outbox import PARK_BYTES, Outbox
from car_daemon.peer import ANYBODY
from car_protocol.answer import Answer, Logprob, Timings, Usage
from car_protocol.envelope import Failure, Result, encode_message
from car_protocol.errors import RpcError
from car_protocol.limits import Limits

Json = dict[str, Any]
LIMITS = Limits(slow_reader_ms=20, max_output_bytes=2 * PARK_BYTES, max_frame_bytes=1024)


class Pipe:
    """A transport whose client reads when the test says so."""

    def __init__(self) -> None:
        self.read = b""
        self._waiting = b""
        self.reads = True
        self.outbox: Outbox | None = None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def write(self, data: bytes) -> None:
        if self.reads:
            self.read += data
            return
        self._waiting += data
        assert self.outbox is not None
        self.outbox.block()

    def read_some(self, count: int) -> None:
        """Read so many bytes."""
        self.read, self._waiting = self.read + self._waiting[:count], self._waiting[count:]

    def go_on(self) -> None:
        """Read everything."""
        self.reads = True
        self.read, self._waiting = self.read + self._waiting, b""
        assert self.outbox is not None
        self.outbox.unblock()

    @property
    def messages(self) -> list[Json]:
        """Everything that was read."""
        return [json.loads(line) for line in self.read.splitlines()]


class Client:
    """A client with one stream, and a record of what the daemon did about it."""

    def __init__(self) -> None:
        self.pipe = Pipe()
        self.did: list[str] = []
        self.ended = asyncio.Event()
        self.abandoned = asyncio.Event()
        self.held = HeldBytes()
        self.outbox = Outbox(LIMITS, lambda measure: Share(self.held, ANYBODY, measure, self._abandon))
        self.pipe.outbox = self.outbox
        self.outbox.open(cast(asyncio.Transport, self.pipe))
        self.stream = self.new_stream(1)

    def new_stream(self, request_id: int) -> Exchange:
        stream = Exchange(request_id, 0, self._end, self.outbox)
        stream.work = Work(
            cancel=lambda reason: stream.error(RpcError(reason)),
            hold=lambda: self.did.append(f"held {request_id}"),
            release=lambda: self.did.append(f"released {request_id}"),
        )
        return stream

    def _end(self, exchange: Exchange, response: Result | Failure) -> None:
        self.did.append(f"ended {exchange.id}")
        self.ended.set()
        self.outbox.send(encode_message(response))

    def _abandon(self) -> None:
        self.did.append("abandoned")
        self.abandoned.set()

    def block(self) -> None:
        """Stop reading, and have the first byte wait."""
        self.pipe.reads = False
        self.stream.chunk("first", None)
        self.outbox.flush()

    @property
    def chunks(self) -> list[Json]:
        """The params of the chunks that were read."""
        return [message["params"] for message in self.pipe.messages if "params" in message]


def run(scenario: Callable[[Client], None]) -> Client:
    """Play a scenario in a loop; return the client as it is then."""

    async def play() -> Client:
        client = Client()
        scenario(client)
        client.outbox.flush()
        return client

    return asyncio.run(play())


def likely(token: int) -> Extra:
    return Extra(tokens=[token], logprobs=[Logprob(token, "x", -1.0, [])], reasoning=f"r{token}")


async def test_frames_of_one_turn_go_out_together_at_its_end() -> None:
    client = Client()
    client.outbox.send(b"1\n")
    client.outbox.send(b"2\n")
    assert client.pipe.read == b""
    await asyncio.sleep(0)
    assert client.pipe.read == b"1\n2\n"


def test_chunks_go_out_one_by_one_while_the_client_reads() -> None:
    def scenario(client: Client) -> None:
        client.stream.chunk("a", None)
        client.stream.chunk("b", likely(1))

    chunks = run(scenario).chunks
    assert [(chunk["seq"], chunk["text"]) for chunk in chunks] == [(0, "a"), (1, "b")]


def test_what_waits_goes_out_as_one_chunk_with_everything_in_order() -> None:
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


def test_a_stream_that_brings_more_than_may_wait_is_held_once_and_released_when_it_is_read() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("a" * PARK_BYTES, None)
        client.stream.chunk("a", None)
        client.did.append("reads")
        client.pipe.go_on()
        client.stream.chunk("z", None)

    client = run(scenario)
    assert client.did == ["held 1", "reads", "released 1"]
    assert len("".join(chunk["text"] for chunk in client.chunks)) == len("first") + PARK_BYTES + 2


def test_a_stream_stays_held_while_its_client_reads_too_little() -> None:
    def scenario(client: Client) -> None:
        client.block()
        client.stream.chunk("a" * PARK_BYTES, None)
        client.outbox.unblock()
        assert client.did == ["held 1"]

    assert run(scenario).outbox.blocked


def test_a_held_stream_that_is_not_read_in_time_ends_and_what_waited_is_dropped() -> None:
    async def play() -> Client:
        client = Client()
        client.block()
        client.stream.chunk("a" * PARK_BYTES, None)
        await client.ended.wait()
        client.pipe.go_on()
        client.outbox.flush()
        return client

    client = asyncio.run(play())
    assert client.did == ["held 1", "ended 1"]
    assert [chunk["text"] for chunk in client.chunks] == ["first"]
    assert client.pipe.messages[-1]["error"]["code"] == 1007


def test_streams_that_hold_more_than_the_limit_end_at_once() -> None:
    def scenario(client: Client) -> None:
        client.block()
        other = client.new_stream(2)
        other.chunk("b", None)
        client.stream.chunk("a" * LIMITS.max_output_bytes, None)

    assert run(scenario).did == ["ended 2", "ended 1"]


def test_a_large_answer_that_waits_ends_no_stream() -> None:
    def scenario(client: Client) -> None:
        client.pipe.reads = False
        client.outbox.send(b"x" * 3 * LIMITS.max_output_bytes + b"\n")
        client.outbox.flush()
        client.stream.chunk("a", None)
        assert client.did == ["held 1"]
        client.pipe.go_on()

    assert run(scenario).did == ["held 1", "released 1"]


TOO_MUCH = b"x" * 8 * LIMITS.max_output_bytes
PATIENCE_S = LIMITS.slow_reader_ms / 1000


def flooded() -> Client:
    """Return a client that does not read, and to whom too much is sent."""
    client = Client()
    client.pipe.reads = False
    client.outbox.send(TOO_MUCH)
    return client


async def test_who_leaves_too_much_unread_for_too_long_is_dropped_and_nobody_sooner() -> None:
    client = flooded()
    for _ in range(2):
        client.outbox.flush()
        client.outbox.send(b"y")
    assert client.did == []
    async with asyncio.timeout(10):
        await client.abandoned.wait()
    assert client.did == ["abandoned"]
    client.outbox.send(b"y")
    client.outbox.flush()
    assert not client.pipe.read


async def test_who_reads_a_long_answer_bit_by_bit_is_not_dropped_even_where_more_comes_than_it_reads() -> None:
    client = flooded()
    for _ in range(4):
        client.outbox.flush()
        client.pipe.read_some(1000)
        client.outbox.send(b"y" * 2000)
        await asyncio.sleep(PATIENCE_S)  # slow, but it reads
    client.outbox.flush()
    client.pipe.go_on()
    assert client.did == []
    assert client.pipe.read == TOO_MUCH + b"y" * 8000


async def test_what_a_client_once_left_unread_does_not_count_against_it_later() -> None:
    client = Client()
    for _ in range(2):
        client.pipe.reads = False
        for frame in (TOO_MUCH, b"y", b"y"):
            client.outbox.send(frame)
            client.outbox.flush()
        client.pipe.go_on()
        await asyncio.sleep(2 * PATIENCE_S)  # it has nothing to read
    assert client.did == []


async def test_of_a_connection_that_ended_nobody_looks_any_more() -> None:
    client = flooded()
    client.outbox.flush()
    client.outbox.discard()
    await asyncio.sleep(2 * PATIENCE_S)  # nothing announces what does not happen
    assert client.did == []


def test_a_cancelled_stream_is_told_how_many_chunks_it_gets() -> None:
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
        client.stream.chunk("a" * PARK_BYTES, None)
        client.outbox.discard()
        await asyncio.sleep(2 * LIMITS.slow_reader_ms / 1000)
        return client.did

    assert asyncio.run(play()) == ["held 1"]


async def test_gathered_frames_go_out_with_the_flush_and_later_ones_by_themselves() -> None:
    client = Client()
    client.outbox.gather()
    client.outbox.send(b"1\n")
    await asyncio.sleep(0)
    assert client.pipe.read == b""
    client.outbox.flush()
    assert client.pipe.read == b"1\n"
    client.outbox.send(b"2\n")
    await asyncio.sleep(0)
    assert client.pipe.read == b"1\n2\n"
