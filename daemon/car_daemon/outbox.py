"""What is on its way to one client: written once a turn, and held back while the client does not read."""

import asyncio
from typing import Protocol

from car_daemon.held import Sharing
from car_protocol.limits import Limits

# Once this much waits for a connection, the streams that add to it are set aside.
PARK_BYTES = 256 * 1024
# A client that reads none of its answers is dropped when more than this many times `max_output_bytes` waits.
_ABANDON_FACTOR = 4


class Stream(Protocol):
    """A stream that holds its chunks back, merged into one, while its client does not read."""

    def send_held(self) -> None:
        """Send what was held back."""
        ...

    def park(self) -> None:
        """Have nothing more produced until `resume`."""
        ...

    def resume(self) -> None:
        """Go on after `park`."""
        ...

    def give_up(self) -> None:
        """End with an error; what was held back is dropped."""
        ...


class Outbox:
    """The bytes that wait for one connection; `blocked` while the kernel takes no more of them.

    What a blocked client's streams bring is held back by them; a stream that brings more is parked, and given up where
    the client has not caught up after `slow_reader_ms`, or where all of them hold more than `max_output_bytes`.
    """

    def __init__(self, limits: Limits, share: Sharing) -> None:
        self._limits = limits
        self._share = share(lambda: self._written + sum(self._held.values()))
        self._abandon_bytes = _ABANDON_FACTOR * limits.max_output_bytes + limits.max_frame_bytes
        # Mutable state: the transport until it is gone, whether anything more is written to it, frames for the next
        # write, whether that is to come, whether the last write filled the kernel's buffer; the bytes that were written
        # in all, and the timer that looks whether a client for which too much waits reads any of it; bytes held by each
        # stream that holds some, and the timers of those that are parked.
        self._transport: asyncio.Transport | None = None
        self._open = False
        self._frames: list[bytes] = []
        self._flushes = False
        self.blocked = False
        self._sent = 0
        self._patience: asyncio.TimerHandle | None = None
        self._held: dict[Stream, int] = {}
        self._parked: dict[Stream, asyncio.TimerHandle] = {}

    def open(self, transport: asyncio.Transport) -> None:
        """Write to this transport, which reports at once when it is full, and when it is empty again."""
        transport.set_write_buffer_limits(high=0)
        self._transport, self._open = transport, True

    def close(self) -> None:
        """Write what is left, and nothing after it."""
        self.flush()
        self._end()

    def discard(self) -> None:
        """Drop what is left."""
        self._transport = None
        self._end()

    def send(self, frame: bytes) -> None:
        """Have a frame written with the others of this turn."""
        if not self._open:
            return
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self.flush)
        self._frames.append(frame)

    def gather(self) -> None:
        """Have what is sent now wait for the `flush` that the caller owes."""
        self._flushes = True

    def flush(self) -> None:
        """Write the frames of this turn."""
        self._flushes = False
        if self._transport is None or not self._frames:
            return
        data = b"".join(self._frames)
        self._frames.clear()
        self._transport.write(data)
        self._sent += len(data)
        if self.blocked:
            self._share.changed()
            self._watch()

    def block(self) -> None:
        """The kernel takes no more."""
        self.blocked = True
        self._watch()

    def unblock(self) -> None:
        """The kernel took all that was written: send what was held back; where it takes that too, go on."""
        self.blocked = False
        for stream in list(self._held):
            stream.send_held()
        self._held.clear()
        self.flush()
        self._share.changed()
        if not self.blocked:
            for stream in list(self._parked):
                self.forget(stream)
                stream.resume()

    def hold(self, stream: Stream, size: int) -> None:
        """Count bytes that a stream holds back; park it, or give up, where that is too much."""
        self._held[stream] = self._held.get(stream, 0) + size
        self._share.changed()
        held = sum(self._held.values())
        if held > self._limits.max_output_bytes:
            for each in list(self._held):
                each.give_up()
        elif stream not in self._parked and held + self._written > PARK_BYTES:
            seconds = self._limits.slow_reader_ms / 1000
            self._parked[stream] = asyncio.get_running_loop().call_later(seconds, stream.give_up)
            stream.park()

    def forget(self, stream: Stream) -> None:
        """Count a stream no more."""
        self._held.pop(stream, None)
        timer = self._parked.pop(stream, None)
        if timer is not None:
            timer.cancel()

    def _watch(self) -> None:
        """Where too much waits, which one answer alone may be, look later whether any of it was read."""
        if self._patience is None and self._written > self._abandon_bytes:
            taken, seconds = self._sent - self._written, self._limits.slow_reader_ms / 1000
            self._patience = asyncio.get_running_loop().call_later(seconds, self._look, taken)

    def _look(self, taken: int) -> None:
        self._patience = None
        if self._written > self._abandon_bytes and self._sent - self._written == taken:
            self.discard()
            self._share.abandon()
        else:
            self._watch()

    def _end(self) -> None:
        self._open = False
        self._frames.clear()
        if self._patience is not None:
            self._patience.cancel()
        for stream in [*self._held, *self._parked]:
            self.forget(stream)
        self._share.changed()

    @property
    def _written(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()
