"""An engine process as the daemon sees it: frames in both directions, and its end."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Protocol, cast

from msgspec import Struct

from car_daemon.engine.codec import FrameReader, decode_from_engine, encode_frame
from car_daemon.engine.frames import FromEngine

_KILL_AFTER_S = 1.0
# More than uvloop needs at once for a process.
_LAUNCH_DESCRIPTORS = 12
_ENVIRONMENT = {
    # llama.cpp's assertion handler would fork a debugger before the process may die.
    "GGML_NO_BACKTRACE": "1",
    # Threads that wait for each other give their core to another program soon: docs/decisions/0007.
    "GOMP_SPINCOUNT": "2500",
}


class Engine(Protocol):
    """An engine that the daemon can talk to."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def send(self, message: Struct) -> None:
        """Send one frame."""
        ...

    async def wait(self) -> int:
        """Return its exit status, or the signal that ended it as a negative number, once all its frames were heard."""
        ...

    def kill(self) -> None:
        """End it by force; `wait` returns then."""
        ...

    async def stop(self) -> None:
        """End it, by force if it does not go."""
        ...


class EngineLink(asyncio.Protocol):
    """The daemon's end of an engine's socket; calls `hear` for every frame in order."""

    def __init__(self, hear: Callable[[FromEngine], None]) -> None:
        self._hear = hear
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass on the frames that came."""
        for body in self._reader.feed(data):
            self._hear(decode_from_engine(body))

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine closed its end, or died."""
        self.closed.set()

    def send(self, message: Struct) -> None:
        """Send one frame; nothing happens once the engine is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        """Close the daemon's end: an engine without a daemon ends by itself."""
        if self._transport is not None:
            self._transport.close()


class EngineChild:
    """A spawned engine process."""

    def __init__(self, process: asyncio.subprocess.Process, link: EngineLink) -> None:
        self._process = process
        self._link = link

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: Struct) -> None:
        """Send one frame."""
        self._link.send(message)

    async def wait(self) -> int:
        """Return the process's status once it is gone and its last frame was heard."""
        await self._link.closed.wait()
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the process; one that is gone stays so."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Close the link, which ends the process; kill it if it does not go."""
        self._link.close()
        try:
            await asyncio.wait_for(self._process.wait(), _KILL_AFTER_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()


async def launch(hear: Callable[[FromEngine], None], stderr: int | None = None) -> Engine:
    """Spawn an engine process (never a fork of this one) and connect to it; None leaves it our standard error."""
    _require_descriptors()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            process = await _spawn(theirs, stderr)
        return EngineChild(process, await _connect(ours, process, hear))
    except BaseException:
        ours.close()
        raise


def _require_descriptors() -> None:
    """Raise OSError where there are too few: a launch that fails halfway would keep some of them for good."""
    with contextlib.ExitStack() as stack:
        for _ in range(_LAUNCH_DESCRIPTORS):
            stack.enter_context(open(os.devnull, "rb"))


async def _spawn(theirs: socket.socket, stderr: int | None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "car_daemon.engine",
        str(theirs.fileno()),
        pass_fds=(theirs.fileno(),),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=stderr,
        env=_ENVIRONMENT | os.environ,
        # A Ctrl-C in the daemon's terminal is the daemon's to handle.
        start_new_session=True,
    )


async def _connect(
    ours: socket.socket, process: asyncio.subprocess.Process, hear: Callable[[FromEngine], None]
) -> EngineLink:
    """Connect to a process; one that nobody could talk to is ended."""
    try:
        _, link = await asyncio.get_running_loop().create_unix_connection(lambda: EngineLink(hear), sock=ours)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return link
