"""The daemon's side of a process of its own: its launch, frames in both directions, and its end."""

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from msgspec import DecodeError, Struct, ValidationError

from car_base.host import defects
from car_base.host.cores import waits_for_cores
from car_base.host.event_log import named
from car_base.ipc.codec import LONG_KINDS, FrameReader, FrameTooLong, UnsentFrames, decode_from_engine, encode_frame
from car_base.ipc.frames import FromEngine
from car_base.ipc.spawning import ENGINE, spawn_engine
from car_daemon.engines.cell_keeper import CellKeeper
from car_daemon.telemetry.logs import standard_error

_KILL_AFTER_S = 1.0
# More descriptors than uvloop opens at once for a process, and a pipe.
_LAUNCH_DESCRIPTORS = 14
# Seconds of one engine's frames at a time: about a step of a small model, by which another one's may be later.
_TURN_S = 0.005


class WrongFrame(Exception):
    """A frame at the wrong time; the message is why the engine is ended."""


class NoPlace(Exception):
    """No machine has a place for an engine now; the message says what is missing."""


class Engine(Protocol):
    """A connected engine process."""

    @property
    def pid(self) -> int | None:
        """The process id; None of a process on another machine."""
        ...

    @property
    def host(self) -> str | None:
        """The address of its machine; None of this one."""
        ...

    @property
    def fault(self) -> str | None:
        """The reason why the daemon ended the link; None while it is up, and if the engine ended it."""
        ...

    @property
    def cut(self) -> bool:
        """Whether the way to it was lost: never on this machine."""
        ...

    def waits(self) -> Mapping[str, float]:
        """Return how long each of its threads has waited for a core, in seconds; empty if nothing counts it."""
        ...

    def send(self, message: Struct) -> None:
        """Send one frame."""
        ...

    async def wait(self) -> int:
        """Return the exit status, or the signal that ended it as a negative number, once all frames were received."""
        ...

    def kill(self) -> None:
        """Send SIGKILL; `wait` returns then."""
        ...

    async def stop(self) -> None:
        """End the process, by SIGKILL after a second."""
        ...


# Starts an engine that passes its frames to a function, and whose files of cells are kept, if it stores any.
Launcher = Callable[[Callable[[FromEngine], None], CellKeeper | None], Awaitable[Engine]]
# Starts a process that has one end of a socket.
Spawn = Callable[[socket.socket], Awaitable[asyncio.subprocess.Process]]


class EngineLink(asyncio.Protocol):
    """The daemon's end of an engine's socket; calls `receive` for every frame in order.

    A frame that is too long, out of range, undecodable or at the wrong time ends the link, because a hostile model file
    may control the process. Frames that take longer than a turn are received in several, between which the event loop
    serves others; meanwhile no more are read.
    """

    def __init__(
        self,
        receive: Callable[[Any], None],
        decode: Callable[[bytes], Any] = decode_from_engine,
        *,
        long: Sequence[bytes] = LONG_KINDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._receive = receive
        self._decode = decode
        self._clock = clock
        self._reader = FrameReader(long=long)
        self._bodies: deque[bytes] = deque()  # of frames that were read and not yet received
        self._next_turn: asyncio.Handle | None = None  # while frames wait for it
        self._lost = False  # whether the engine closed its end
        self._transport: asyncio.Transport | None = None
        self._paused = False  # whether frames wait for the engine to read
        self._unsent = UnsentFrames()
        self.closed = asyncio.Event()
        self.fault: str | None = None  # why the daemon ended the link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # The cast is needed because uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass on the frames that are complete, for the time of a turn; the rest in the next one."""
        bodies = self._bodies
        try:
            bodies += self._reader.feed(data)
            end = self._clock() + _TURN_S
            while bodies:
                self._receive(self._decode(bodies.popleft()))
                if bodies and self._clock() > end:
                    self._wait_for_turn()
                    return
        except (FrameTooLong, WrongFrame) as error:
            self._end(str(error))
        except (DecodeError, UnicodeDecodeError) as error:
            self._end(_fault_of(error))
        except Exception as error:  # noqa: BLE001 - a defect: it ends this engine alone
            defects.report("engine.frame_failed", error)
            self._end(f"a frame of the engine failed: {named(error)}")
        if self._next_turn is not None:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the engine closed its end, or died; its last frames are still received."""
        self._paused, self._unsent = False, UnsentFrames()
        self._lost = True
        if self._next_turn is None:
            self.closed.set()

    def pause_writing(self) -> None:
        """Keep frames back: the engine does not read as fast as it is sent to."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send the frames that were kept back, until the engine falls behind again."""
        self._paused = False
        while not self._paused and (frame := self._unsent.take()) is not None:
            assert self._transport is not None
            self._transport.write(frame)

    def send(self, message: Struct) -> None:
        """Send one frame; it is dropped once the engine is gone."""
        if self._transport is None or self._transport.is_closing():
            return
        frame = encode_frame(message)
        if self._paused:
            self._unsent.add(message, frame)
        else:
            self._transport.write(frame)

    def _wait_for_turn(self) -> None:
        """Have the event loop serve others before the next frames are received."""
        if self._next_turn is None and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._next_turn = asyncio.get_running_loop().call_soon(self.data_received, b"")

    def _go_on(self) -> None:
        """Read again, now that all frames were received."""
        self._next_turn = None
        if self._lost:
            self.closed.set()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self, fault: str) -> None:
        """Close the link because of what the engine sent."""
        self.fault = fault
        self.abort()

    def abort(self) -> None:
        """Close the link at once, without the bytes that are buffered."""
        self._reader, self._unsent = FrameReader(), UnsentFrames()
        self._bodies.clear()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the daemon's end; an engine without a daemon exits by itself."""
        self._unsent = UnsentFrames()
        if self._transport is not None:
            self._transport.close()


def _fault_of(error: Exception) -> str:
    """Return why a frame was refused, without a value of it: it may be text of a request."""
    if isinstance(error, ValidationError) and str(error).startswith("Expected "):
        return f"a frame of the engine cannot be decoded: {error}"
    return "a frame of the engine cannot be decoded"


class LinkedProcess:
    """A process of this machine that ends with its link: an engine, or the placer."""

    host: str | None = None
    cut = False

    def __init__(self, process: asyncio.subprocess.Process, link: EngineLink) -> None:
        self._process = process
        self._link = link

    def __repr__(self) -> str:
        return f"<ChildProcess pid={self.pid}>"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_up(self) -> bool:
        """Whether it still takes frames."""
        return not self._link.closed.is_set()

    @property
    def fault(self) -> str | None:
        """The reason why the daemon ended the link; None if it did not."""
        return self._link.fault

    def waits(self) -> Mapping[str, float]:
        """Return how long each of its threads has waited for a core, in seconds; empty if nothing counts it."""
        return waits_for_cores(self.pid)

    def send(self, message: Struct) -> None:
        """Send one frame; it is dropped once the process is gone."""
        self._link.send(message)

    async def wait(self) -> int:
        """Return the process's status once it is gone and its last frame was received."""
        await self._link.closed.wait()
        if self._link.fault is not None:
            self.kill()
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the process, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Close the link, which ends the process; kill it if that takes more than a second."""
        self._link.close()
        try:
            await asyncio.wait_for(self._process.wait(), _KILL_AFTER_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()


async def launch(
    receive: Callable[[FromEngine], None],
    keeper: CellKeeper | None,
    write: Callable[[str], object] = standard_error.write,
    module: str = ENGINE,
) -> LinkedProcess:
    """Spawn an engine process (never a fork of this one) and connect to it, and to the keeper of its files of cells.

    Lines of its standard error are passed to `write`, by default to the daemon's own; `module` is its program. Raises
    OSError.
    """
    files = None if keeper is None else await asyncio.to_thread(keeper.connect)
    with files or contextlib.nullcontext():
        spawn = partial(spawn_engine, write=write, module=module, files=files)
        return await linked(spawn, lambda: EngineLink(receive))


async def linked(spawn: Spawn, link: Callable[[], EngineLink]) -> LinkedProcess:
    """Return the process that `spawn` starts with one end of a socket; the other end is that of a new link.

    No process is left if this raises OSError.
    """
    _require_descriptors()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            process = await spawn(theirs)
        try:
            _, connected = await asyncio.get_running_loop().create_unix_connection(link, sock=ours)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        return LinkedProcess(process, connected)
    except BaseException:
        ours.close()
        raise


def _require_descriptors() -> None:
    """Raise OSError if too few are free, because a launch that fails halfway would leak descriptors."""
    with contextlib.ExitStack() as stack:
        for _ in range(_LAUNCH_DESCRIPTORS):
            stack.enter_context(open(os.devnull, "rb"))
