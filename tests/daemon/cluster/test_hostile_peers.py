"""The relay and the daemon's connection against peers that mean harm: bytes of any kind, slow, replayed, half open."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_base.ipc.codec import MAX_FRAME_BYTES, encode_frame
from car_base.ipc.frames import Heartbeat
from car_base.ipc.placing import EngineEnded, FromRelay, Placed, context_of
from car_daemon.cluster.remote import CONNECT_ERRORS, UNKNOWN_STATUS, RemoteEngine

pytest.importorskip("cryptography", reason="pairs need the package cryptography")

from car_placer.relay import new_pair
from tests.daemon.cluster.test_relay import seat
from tests.pace import HANG_S

FUZZ = settings(max_examples=25)
PAIR = new_pair()
CLIENTS = 50
HEADER = b"\x16\x03\x01"  # of a TLS handshake
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


def client_hello() -> bytes:
    """Return the first bytes of an honest client."""
    given, taken = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context_of(PAIR, "client").wrap_bio(given, taken).do_handshake()
    return taken.read()


HELLO = client_hello()


def damaged(flips: list[tuple[int, int]], length: int) -> bytes:
    """Return the first bytes of an honest client, some of them changed, up to a length."""
    data = bytearray(HELLO)
    for place, bits in flips:
        data[place % len(data)] ^= bits
    return bytes(data[: length % len(data) + 1])


BYTES = st.one_of(
    st.binary(max_size=400),
    st.builds(lambda rest: HEADER + rest, st.binary(max_size=200)),
    st.builds(
        damaged,
        st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), min_size=1, max_size=5),
        st.integers(0, 2**16),
    ),
)


async def refused(port: int, data: bytes) -> None:
    """Send bytes to a seat and close; whatever it answers is no handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(OSError):
        writer.write(data)
        writer.write_eof()
        await reader.read()
    writer.transport.abort()


@FUZZ
@given(st.lists(BYTES, min_size=1, max_size=4))
def test_no_bytes_of_a_client_without_the_key_start_an_engine_or_keep_the_daemon_away(sent: list[bytes]) -> None:
    async def attack() -> None:
        async with seat() as one:
            await asyncio.gather(*(refused(one.port, data) for data in sent))
            assert not one.engine.started.is_set()
            remote = await one.connect()
            await one.engine.started.wait()
            await remote.stop()

    asyncio.run(attack())


async def test_clients_that_send_a_byte_now_and_then_do_not_keep_the_daemon_away() -> None:
    async with seat() as one:
        slow = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(CLIENTS)]

        async def trickle() -> None:
            for byte in HELLO:
                for _, writer in slow:
                    writer.write(bytes([byte]))
                await asyncio.sleep(0)

        trickling = asyncio.create_task(trickle())
        remote = await one.connect()
        await one.engine.started.wait()
        one.engine.writer.write(encode_frame(Heartbeat(1, 0.0, {})))
        assert await one.frames.get() == Heartbeat(1, 0.0, {})
        trickling.cancel()
        await remote.stop()
        for _, writer in slow:
            writer.transport.abort()


async def test_a_recorded_connection_that_is_sent_again_starts_no_engine() -> None:
    recorded = bytearray()
    async with seat() as one:
        over = asyncio.Event()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, here = await asyncio.open_connection("127.0.0.1", one.port)

            async def back() -> None:
                while data := await there.read(1 << 16):
                    writer.write(data)

            answers = asyncio.create_task(back())
            with suppress(OSError):
                while data := await reader.read(1 << 16):
                    recorded.extend(data)
                    here.write(data)
            answers.cancel()
            here.transport.abort()
            writer.transport.abort()
            over.set()

        between = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = between.sockets[0].getsockname()[1]
        placed = Placed(number=1, node="n", address="127.0.0.1", port=port, pair=one.pair, path="/m", content="c")
        remote = RemoteEngine(placed, asyncio.get_running_loop().time, lambda _: None)
        await remote.connect(one.frames.put_nowait, one.memory.put_nowait)
        await one.engine.started.wait()
        await one.memory.get()
        pair = one.pair
        await remote.stop()
        await over.wait()
        between.close()
    assert len(recorded) > len(HELLO)
    async with seat(pair=pair) as again:
        await refused(again.port, bytes(recorded))
        assert not again.engine.started.is_set()


async def test_a_daemon_that_closes_only_its_sending_half_ends_the_engine() -> None:
    async with seat() as one:
        raw = socket.create_connection(("127.0.0.1", one.port))
        raw.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=raw, ssl=context_of(one.pair, "client"), server_hostname="")
        await one.engine.started.wait()
        raw.shutdown(socket.SHUT_WR)
        assert await one.served == 0
        writer.transport.abort()
        del reader


@asynccontextmanager
async def hostile_seat(serve: Serve, *, tls: bool = True) -> AsyncIterator[Placed]:
    """Run a seat that does what `serve` does; its address and pair are those that a placer would return."""
    context = context_of(PAIR, "server") if tls else None
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(HANG_S):
            yield Placed(number=1, node="n", address="127.0.0.1", port=port, pair=PAIR, path="/m", content="c")
    finally:
        server.close()


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


HONEST = encode_frame(Heartbeat(1, 0.0, {}))
FRAMES = st.one_of(
    st.binary(max_size=100),
    st.builds(framed, st.binary(max_size=60)),
    st.just(HONEST),
    st.builds(lambda status: encode_frame(EngineEnded(status)), st.integers(-70, 255)),
    st.builds(
        lambda place, bit: HONEST[:place] + bytes([HONEST[place] ^ bit]) + HONEST[place + 1 :],
        st.integers(4, len(HONEST) - 1),
        st.integers(1, 255),
    ),
    st.integers(MAX_FRAME_BYTES + 1, 2**32 - 1).map(lambda length: length.to_bytes(4, "little") + b"x"),
)


@FUZZ
@given(st.lists(FRAMES, max_size=6))
def test_whatever_a_seat_sends_the_daemon_takes_frames_alone_and_has_an_end(sent: list[bytes]) -> None:
    received: list[object] = []
    failures: list[dict[str, Any]] = []

    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(b"".join(sent))
            await writer.drain()
        writer.close()

    async def meet() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with hostile_seat(send) as placed:
            remote = RemoteEngine(placed, asyncio.get_running_loop().time, lambda _: None)
            await remote.connect(received.append, received.append)
            return await remote.wait()

    status = asyncio.run(meet())
    kinds = tuple(kind for kind in get_args(FromRelay) if kind is not EngineEnded)
    assert all(isinstance(message, kinds) for message in received)
    assert -(2**63) <= status < 2**63
    assert failures == []


async def test_a_frame_beyond_the_limit_ends_the_link_before_it_is_buffered() -> None:
    async def announce(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
        with suppress(OSError):
            await writer.drain()

    received: list[object] = []
    async with hostile_seat(announce) as placed:
        remote = RemoteEngine(placed, asyncio.get_running_loop().time, lambda _: None)
        await remote.connect(received.append, received.append)
        assert await remote.wait() == UNKNOWN_STATUS
        assert remote.fault is not None
        assert f"{MAX_FRAME_BYTES:,}" in remote.fault
        assert received == []


async def test_a_seat_with_another_key_gets_no_frame_of_the_daemon() -> None:
    taken = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            taken.extend(await reader.read())
        writer.close()

    async with hostile_seat(take) as placed:
        other = Placed(
            number=1, node="n", address="127.0.0.1", port=placed.port, pair=new_pair(), path="/m", content="c"
        )
        remote = RemoteEngine(other, asyncio.get_running_loop().time, lambda _: None)
        with pytest.raises(CONNECT_ERRORS):
            await remote.connect(lambda _: None, lambda _: None)
    assert taken == b""


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", HEADER + b"\xff" * 50], ids=["closes", "http", "tls"]
)
async def test_a_port_that_is_no_seats_is_an_error_of_the_connection(answer: bytes) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with hostile_seat(serve, tls=False) as placed:
        remote = RemoteEngine(placed, asyncio.get_running_loop().time, lambda _: None)
        with pytest.raises(CONNECT_ERRORS):
            await remote.connect(lambda _: None, lambda _: None)
