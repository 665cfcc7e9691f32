"""Bytes on their way to one client: written once a turn of the event loop, deferred while the client does not read."""

import asyncio

from car_daemon.connections.deferred_streams import DeferredStreams, Stream
from car_daemon.connections.memory_share import Sharing
from car_daemon.connections.stall_watch import StallWatch
from car_protocol.limits import Limits


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
        """Write what is unread, then the deferred chunks; where that does not block again, continue the streams."""
        self.blocked = False
        self._write_unread()
        if self.blocked:
            return
        self.deferred.send()
        self.flush()
        self._share.changed()
        if not self.blocked:
            self.deferred.unpause()

    def defer(self, stream: Stream, size: int) -> None:
        """Count bytes that a stream deferred; where they are too many, pause it or cancel all streams."""
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
