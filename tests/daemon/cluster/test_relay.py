"""The relay of a seat and the daemon's connection to it, against each other and against hostile peers."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from car_base.host.memory import MemoryReading
from car_base.ipc.codec import encode_frame
from car_base.ipc.frames import FromEngine, Heartbeat, SetThreads
from car_base.ipc.placing import HostMemory, Placed, context_of
from car_daemon.cluster.remote import UNKNOWN_STATUS, RemoteEngine

pytest.importorskip("cryptography", reason="pairs need the package cryptography")

from car_placer.relay import Relay, RelayLimits, new_pair
from tests.pace import HANG_S

READING = MemoryReading(100, 40, 1.0, 0.5)
LIMITS = RelayLimits(connect_s=5.0, cut_s=0.3, memory_s=0.05, end_s=0.2)
MANY = 200


class FakeEngine(asyncio.subprocess.Process):
    """An engine behind a relay: the test writes to its socket and reads from it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.killed = False
        self.fails = False
        self.status = 0

    async def spawn(self, theirs: socket.socket) -> "FakeEngine":
        if self.fails:
            raise OSError("no process")
        self.reader, self.writer = await asyncio.open_unix_connection(sock=theirs.dup())
        self.started.set()
        return self

    async def wait(self) -> int:
        """Return once the relay closed its end, as a real one ends then."""
        with suppress(ConnectionResetError):
            while await self.reader.read(1 << 16):
                pass
        self.writer.close()
        return self.status

    def kill(self) -> None:
        self.killed = True
        self.reader.feed_eof()


class Seat:
    """A relay that listens on the loopback network, its engine, and the way to it."""

    def __init__(self, limits: RelayLimits, pair: bytes | None = None) -> None:
        self.pair = pair or new_pair()
        self.engine = FakeEngine()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        context = context_of(self.pair, "server")
        relay = Relay(context, self.engine.spawn, limits=limits, memory=lambda: READING)
        self.served = asyncio.create_task(relay.serve(listener))
        self.frames: asyncio.Queue[FromEngine] = asyncio.Queue()
        self.memory: asyncio.Queue[HostMemory] = asyncio.Queue()
        self.closed: list[RemoteEngine] = []

    def placed(self, with_pair: bytes | None = None) -> Placed:
        pair = with_pair or self.pair
        return Placed(number=1, node="n", address="127.0.0.1", port=self.port, pair=pair, path="/m", content="c")

    async def connect(self, with_pair: bytes | None = None) -> RemoteEngine:
        engine = RemoteEngine(self.placed(with_pair), asyncio.get_running_loop().time, self.closed.append)
        await engine.connect(self.frames.put_nowait, self.memory.put_nowait)
        return engine


@asynccontextmanager
async def seat(limits: RelayLimits = LIMITS, pair: bytes | None = None) -> AsyncIterator[Seat]:
    one = Seat(limits, pair)
    try:
        async with asyncio.timeout(HANG_S):
            yield one
    finally:
        one.served.cancel()
        await asyncio.gather(one.served, return_exceptions=True)
        if one.engine.started.is_set():
            one.engine.writer.transport.abort()
        # Transports that were aborted close with the next turn of the loop.
        await asyncio.sleep(0)


async def test_frames_pass_in_both_directions_with_the_hosts_memory_between_them() -> None:
    async with seat() as one:
        remote = await one.connect()
        await one.engine.started.wait()
        for step in range(MANY):
            one.engine.writer.write(encode_frame(Heartbeat(step, 0.0, {})))
        steps = [await one.frames.get() for _ in range(MANY)]
        assert steps == [Heartbeat(step, 0.0, {}) for step in range(MANY)]
        remote.send(SetThreads(3))
        frame = encode_frame(SetThreads(3))
        assert await one.engine.reader.readexactly(len(frame)) == frame
        assert await one.memory.get() == HostMemory(100, 40, 1.0, 0.5)
        await remote.stop()
        assert await one.served == 0


async def test_the_status_of_an_engine_that_ends_reaches_the_daemon() -> None:
    async with seat() as one:
        remote = await one.connect()
        await one.engine.started.wait()
        one.engine.status = -11
        one.engine.writer.close()
        assert (await remote.wait(), remote.fault, remote.cut, one.closed) == (-11, None, False, [remote])


async def test_a_node_that_cannot_start_an_engine_reports_a_status_like_one_that_died() -> None:
    async with seat() as one:
        one.engine.fails = True
        remote = await one.connect()
        assert (await remote.wait(), remote.fault, remote.cut) == (71, None, False)
        assert await one.served == 71


async def test_a_lost_connection_has_a_fault_and_no_known_status() -> None:
    async with seat() as one:
        remote = await one.connect()
        await one.engine.started.wait()
        one.served.cancel()
        assert await remote.wait() == UNKNOWN_STATUS
        assert (remote.fault, remote.cut) == ("the connection to 127.0.0.1 was lost", True)


@pytest.mark.parametrize("key", ["none", "another"])
async def test_a_client_without_the_pair_gets_no_engine_and_keeps_none_from_the_daemon(key: str) -> None:
    async with seat() as one:
        if key == "none":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port, ssl=context)
            # TLS 1.3 refuses a client after the client's own handshake is over.
            with suppress(OSError):
                assert await reader.read() == b""
            writer.transport.abort()
        else:
            with pytest.raises(OSError):
                await one.connect(new_pair())
        assert not one.engine.started.is_set()
        remote = await one.connect()
        await one.engine.started.wait()
        await remote.stop()


async def test_clients_that_never_begin_a_handshake_start_nothing_and_block_nothing() -> None:
    async with seat() as one:
        silent = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(5)]
        silent[0][1].write(b"\x00" * 10_000)
        remote = await one.connect()
        await one.engine.started.wait()
        await remote.stop()
        for _, writer in silent:
            writer.close()


async def test_a_seat_without_a_client_closes() -> None:
    async with seat(RelayLimits(connect_s=0.05)) as one:
        assert await one.served is None
        assert not one.engine.started.is_set()


async def test_a_second_client_is_closed_and_the_first_one_served() -> None:
    async with seat() as one:
        remote = await one.connect()
        await one.engine.started.wait()
        with pytest.raises(OSError):
            await one.connect()
        one.engine.writer.write(encode_frame(Heartbeat(1, 0.0, {})))
        assert await one.frames.get() == Heartbeat(1, 0.0, {})
        await remote.stop()


async def test_a_daemon_that_never_reads_loses_its_engine() -> None:
    async with seat() as one:
        context = context_of(one.pair, "client")
        _, writer = await asyncio.open_connection("127.0.0.1", one.port, ssl=context, limit=1)
        await one.engine.started.wait()
        frame = encode_frame(Heartbeat(1, 0.0, {"x" * (1 << 20): 1.0}))
        for _ in range(MANY):
            one.engine.writer.write(frame)
        assert await one.served == 0
        writer.transport.abort()


async def test_a_frame_that_announces_too_much_ends_the_connection() -> None:
    async with seat() as one:
        remote = await one.connect()
        await one.engine.started.wait()
        one.engine.writer.write(b"\xff\xff\xff\xff" + b"x" * 100)
        await remote.wait()
        assert one.frames.empty()
        await one.served


async def test_half_a_frame_at_the_end_is_dropped() -> None:
    async with seat() as one:
        remote = await one.connect()
        await one.engine.started.wait()
        one.engine.writer.write(encode_frame(Heartbeat(1, 0.0, {}))[:-1])
        one.engine.writer.close()
        assert await remote.wait() == 0
        assert one.frames.empty()
