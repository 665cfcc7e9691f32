"""Bytes on their way to one client: written once a turn of the event loop, deferred while the client does not read."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from car_base.host.timers import Timer
from car_daemon.connections.memory_share import Sharing
from car_protocol.limits import Limits

# With more bytes unread a stream that adds to them is paused.
PAUSE_BYTES = 256 * 1024
# A client that reads nothing for `slow_reader_ms` is dropped when more than this many times `max_output_bytes` waits.
_ABANDON_FACTOR = 4


class StallWatch:
    """Calls `stalled` if a client read none of too many `unwritten` bytes for `slow_reader_ms`.

    `read` returns the bytes that the client has read in all. One answer alone may be long.
    """

    def __init__(
        self, limits: Limits, unwritten: Callable[[], int], read: Callable[[], int], stalled: Callable[[], None]
    ) -> None:
        self._unwritten = unwritten
        self._read = read
        self._stalled = stalled
        self._slow_reader_s = limits.slow_reader_ms / 1000
        self.most = _ABANDON_FACTOR * limits.max_output_bytes + limits.max_frame_bytes  # unwritten, for long
        self._timer = Timer(self._check)  # runs while too much waits
        self._read_before = 0  # bytes that the client had read when the timer was armed

    def look(self) -> None:
        """Check later that the client read any of the bytes, if too many wait."""
        if not self._timer.armed and self._unwritten() > self.most:
            self._read_before = self._read()
            self._timer.arm(self._slow_reader_s)

    def stop(self) -> None:
        """Check no more."""
        self._timer.cancel()

    def _check(self) -> None:
        if self._unwritten() > self.most and self._read() == self._read_before:
            self._stalled()
        else:
            self.look()


class DeferrableStream(Protocol):
    """A stream that merges its chunks into one while its client does not read."""

    def send_deferred(self) -> None:
        """Send the merged chunk."""
        ...

    def pause(self) -> None:
        """Pause the work until `unpause`."""
        ...

    def unpause(self) -> None:
        """Continue the work."""
        ...

    def cancel(self, reason: str) -> None:
        """End with an error; for `slow_reader` the merged chunk is dropped."""
        ...


class DeferredStreams:
    """The streams of one connection whose chunks wait, and the paused streams, cancelled after `slow_reader_ms`."""

    def __init__(self, limits: Limits) -> None:
        self._max_bytes = limits.max_output_bytes
        self._slow_reader_s = limits.slow_reader_ms / 1000
        self._deferred: dict[DeferrableStream, int] = {}  # bytes by stream
        self._paused: dict[DeferrableStream, Timer] = {}  # the time until it is cancelled, by stream

    def __repr__(self) -> str:
        return f"<DeferredStreams deferred={self.size} paused={len(self._paused)}>"

    @property
    def size(self) -> int:
        """Bytes of all merged chunks."""
        return sum(self._deferred.values())

    def add(self, stream: DeferrableStream, size: int) -> None:
        """Count bytes that a stream deferred."""
        self._deferred[stream] = self._deferred.get(stream, 0) + size

    def limit(self, stream: DeferrableStream, unwritten: int) -> None:
        """Cancel all if they defer too much together; else pause this stream if too much is unread."""
        deferred = self.size
        if deferred > self._max_bytes:
            for each in list(self._deferred):
                each.cancel("slow_reader")
        elif stream not in self._paused and deferred + unwritten > PAUSE_BYTES:
            timer = self._paused[stream] = Timer(lambda: stream.cancel("slow_reader"))
            timer.arm(self._slow_reader_s)
            stream.pause()

    def pauses(self, stream: DeferrableStream) -> bool:
        """Return whether a stream is paused."""
        return stream in self._paused

    def send(self) -> None:
        """Send the merged chunks."""
        for stream in list(self._deferred):
            stream.send_deferred()
        self._deferred.clear()

    def unpause(self) -> None:
        """Continue the paused streams."""
        for stream in list(self._paused):
            self.forget(stream)
            stream.unpause()

    def forget(self, stream: DeferrableStream) -> None:
        """Count a stream no longer."""
        self._deferred.pop(stream, None)
        timer = self._paused.pop(stream, None)
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        """Count no stream any longer."""
        for stream in [*self._deferred, *self._paused]:
            self.forget(stream)


class OutboundBuffer:
    """The unread bytes of one connection; `blocked` while the kernel's buffer is full.

    Streams of a blocked client defer their chunks. One that adds too much is paused. It is cancelled when the client
    has not caught up after `slow_reader_ms`; all are when together they defer more than `max_output_bytes`.
    """

    def __init__(self, limits: Limits, share: Sharing) -> None:
        self._share = share(lambda: self._unwritten + self.deferred.size)
        self._transport: asyncio.Transport | None = None  # None before it is open and once its bytes are dropped
        self._open = False  # whether frames are still accepted
        self._frames: list[bytes] = []  # for the next write
        # Written once the client has read; joined here, because a transport keeps each write as an object of its own.
        self._unread = bytearray()
        self.corked = False  # whether a flush is to come, scheduled here or owed by the owner that set this
        self.blocked = False
        self._sent = 0  # bytes written to the transport in all
        self.deferred = DeferredStreams(limits)
        self._stall = StallWatch(limits, lambda: self._unwritten, lambda: self._sent - self._unwritten, self._stalled)

    def __repr__(self) -> str:
        return (
            f"<OutboundBuffer unwritten={self._unwritten} blocked={self.blocked} sent={self._sent} {self.deferred!r}>"
        )

    def open(self, transport: asyncio.Transport) -> None:
        """Write to this transport; it reports at once when the kernel's buffer is full, and when all is written."""
        transport.set_write_buffer_limits(high=0)
        self._transport, self._open = transport, True

    def close(self) -> None:
        """Write the remaining frames, and accept no more."""
        self.flush()
        self._write_unread()
        self._end()

    def discard(self) -> None:
        """Drop the remaining frames, and accept no more."""
        self._transport = None
        self._unread = bytearray()
        self._end()

    def send(self, frame: bytes) -> None:
        """Write a frame together with the others of this turn of the event loop."""
        if not self._open:
            return
        if not self.corked:
            self.corked = True
            asyncio.get_running_loop().call_soon(self.flush)
        self._frames.append(frame)

    def flush(self) -> None:
        """Write the frames of this turn."""
        self.corked = False
        if self._transport is None or not self._frames:
            return
        data = b"".join(self._frames)
        self._frames.clear()
        self._sent += len(data)
        if self.blocked:
            self._unread += data
        else:
            self._transport.write(data)
        if self.blocked:
            self._share.changed()
            self._stall.look()

    def block(self) -> None:
        """Defer chunks from now on: the kernel's buffer is full."""
        self.blocked = True
        self._stall.look()

    def unblock(self) -> None:
        """Write what is unread, then the deferred chunks; if that does not block again, continue the streams."""
        self.blocked = False
        self._write_unread()
        if self.blocked:
            return
        self.deferred.send()
        self.flush()
        self._share.changed()
        if not self.blocked:
            self.deferred.unpause()

    def defer(self, stream: DeferrableStream, size: int) -> None:
        """Count bytes that a stream deferred; if they are too many, pause it or cancel all streams."""
        self.deferred.add(stream, size)
        self._share.changed()
        self.deferred.limit(stream, self._unwritten)

    def _stalled(self) -> None:
        self.discard()
        self._share.abandon()

    def _end(self) -> None:
        self._open = False
        self._frames.clear()
        self._stall.stop()
        self.deferred.clear()
        self._share.changed()

    def _write_unread(self) -> None:
        if self._unread and self._transport is not None:
            # The transport keeps this object.
            data, self._unread = self._unread, bytearray()
            self._transport.write(data)

    @property
    def full(self) -> bool:
        """True while a client has so much unread that it gets no more answers until it reads."""
        return self._unwritten > self._stall.most

    @property
    def _unwritten(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + len(self._unread)
