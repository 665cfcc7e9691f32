"""The relay of a seat, with its key pair: one TLS connection of the daemon on one side, an engine on the other."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct

from car_base.host.memory import MemorySource, read_memory
from car_base.ipc.codec import LENGTH_BYTES, FrameReader, FrameTooLong, encode_frame
from car_base.ipc.placing import HANDSHAKE_S, EngineEnded, HostMemory, limit_silence

# Clocks of machines differ; the pair's life ends with its seat.
_LEEWAY = timedelta(days=1)
_LIFE = timedelta(days=3650)


def new_pair() -> bytes:
    """Return a P-256 key and a certificate that it signed, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "card seat")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


_READ_BYTES = 1 << 18
# In place of the status of an engine that could not be started: sysexits' for a lack of the system.
_NOT_STARTED = 71


class RelayLimits(Struct, frozen=True, kw_only=True):
    """Seconds: until the daemon connects, until it acknowledges bytes, between readings, and for an engine's end.

    An engine whose daemon is cut off is gone within 12 s: 9 s without an acknowledgement, then at most one to end.
    """

    connect_s: float = 15.0
    cut_s: float = 9.0
    memory_s: float = 1.0
    end_s: float = 1.0


# Starts an engine that has one end of a socket.
Spawn = Callable[[socket.socket], Awaitable[asyncio.subprocess.Process]]


class Relay:
    """Serves the first client that shows the pair of `context`; starts the engine after its handshake, never before."""

    def __init__(
        self,
        context: ssl.SSLContext,
        spawn: Spawn,
        *,
        limits: RelayLimits | None = None,
        memory: MemorySource = read_memory,
    ) -> None:
        self._context = context
        self._spawn = spawn
        self._limits = limits or RelayLimits()
        self._memory = memory
        self._client: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] | None = None

    async def serve(self, listener: socket.socket) -> int | None:
        """Connect one daemon with one engine; return the engine's status once both are gone, None if none came."""
        self._client = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(
            self._accept, sock=listener, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
        )
        try:
            reader, writer = await asyncio.wait_for(self._client, self._limits.connect_s)
        except TimeoutError:
            return None
        finally:
            server.close()
        try:
            return await self._connect(reader, writer)
        finally:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the first client; later clients are closed."""
        assert self._client is not None
        if self._client.done():
            writer.transport.abort()
            return
        limit_silence(writer.transport, self._limits.cut_s)
        self._client.set_result((reader, writer))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await self._spawn(theirs)
            except OSError:
                ours.close()
                await self._report_end(writer, _NOT_STARTED)
                return _NOT_STARTED
        engine_reader, engine_writer = await asyncio.open_unix_connection(sock=ours)
        down = asyncio.create_task(self._copy_down(reader, engine_writer))
        up = asyncio.create_task(self._copy_up(engine_reader, writer))
        memory = asyncio.create_task(self._report_memory(writer))
        try:
            await asyncio.wait((down, up, memory), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (down, up, memory):
                task.cancel()
            await asyncio.gather(down, up, memory, return_exceptions=True)
            # An engine without a daemon ends by itself.
            engine_writer.close()
            status = await self._end(process)
        await self._report_end(writer, status)
        return status

    async def _report_end(self, writer: asyncio.StreamWriter, status: int) -> None:
        """Send the engine's status as the last frame."""
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(encode_frame(EngineEnded(status)))
            # A connection of TLS that is closed twice cannot be aborted in Python 3.11.2.
            if not writer.is_closing():
                writer.close()
            await asyncio.wait_for(writer.wait_closed(), self._limits.end_s)

    async def _end(self, process: asyncio.subprocess.Process) -> int:
        try:
            return await asyncio.wait_for(process.wait(), self._limits.end_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return await process.wait()

    async def _copy_down(self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter) -> None:
        """Pass the daemon's bytes on until it closes."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                engine.write(data)
                await engine.drain()

    async def _copy_up(self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass whole frames of the engine on, so that the relay's own frames come between two frames."""
        frames = FrameReader()
        with contextlib.suppress(OSError, TimeoutError, FrameTooLong):
            while data := await engine.read(_READ_BYTES):
                for body in frames.feed(data):
                    writer.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
                await self._drain(writer)

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        """Wait until the daemon took enough; raises TimeoutError."""
        # Python 3.11's wait_for may swallow a cancellation, and the task would go on for ever.
        async with asyncio.timeout(self._limits.cut_s):
            await writer.drain()

    async def _report_memory(self, writer: asyncio.StreamWriter) -> None:
        """Send the machine's memory every second, which shows too that the daemon still acknowledges."""
        with contextlib.suppress(OSError, TimeoutError):
            while True:
                reading = await asyncio.to_thread(self._memory)
                memory = HostMemory(reading.total, reading.available, reading.some_percent, reading.full_percent)
                writer.write(encode_frame(memory))
                await self._drain(writer)
                await asyncio.sleep(self._limits.memory_s)
