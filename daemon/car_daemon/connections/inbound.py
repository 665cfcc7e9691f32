"""Bytes received from one client and not carried out yet: whole frames in order, and the unfinished one."""

from collections import deque
from collections.abc import Callable

from car_base.host.timers import Timer
from car_daemon.connections.memory_share import Sharing
from car_protocol.framing import LineFramer
from car_protocol.limits import Limits

# With more bytes of waiting frames reading pauses. A hang-up is noticed only after them, so the bound is low enough
# that even the smallest frames take less than a second.
_MOST_BYTES = 256 * 1024
# A frame of so many bytes may take as long as a turn of the fair queue, 2 ms: each byte takes up to 0.35 µs to decode
# and to check. Else many connections with a long frame each would hold up the event loop one after the other.
_SHORT_BYTES = 6 * 1024


class InboundBuffer:
    """Cuts received bytes into frames; an unfinished frame older than `frame_timeout_ms` calls `timed_out`.

    The bytes count towards the clients' memory.
    """

    def __init__(self, limits: Limits, timed_out: Callable[[], None], share: Sharing) -> None:
        self._framer = LineFramer(limits.max_frame_bytes)
        self._frame_timeout_s = limits.frame_timeout_ms / 1000
        self._timer = Timer(timed_out)  # of the unfinished frame
        self._share = share(lambda: self._bytes + self._framer.pending)
        self.frames: deque[bytes] = deque()
        self._bytes = 0  # of whole frames
        self.full = False  # whether too many bytes wait: reading should pause until `resume`
        self.overflowed = False  # whether a frame was too long, so that no frame follows the frames that wait
        self._dropped = False  # whether the connection ends, maybe by the share of a frame that `feed` adds

    def __repr__(self) -> str:
        return f"<InboundBuffer frames={len(self.frames)} bytes={self._bytes} unfinished={self._framer.pending}>"

    def feed(self, data: bytes, *, in_turn: bool = False) -> bytes | None:
        """Add bytes of any chunking; return the first frame if none waits and it is short, unless `in_turn`."""
        unfinished = self._framer.pending
        frames = self._framer.feed(data)
        completed = bool(frames)
        at_once = frames and not self.frames and not in_turn and len(frames[0]) <= _SHORT_BYTES
        first = frames.pop(0) if at_once else None
        self.frames.extend(frames)
        self._bytes += sum(map(len, frames))
        self.overflowed = self._framer.overflowed
        self.full = self._bytes > _MOST_BYTES
        if unfinished and (completed or self.full or not self._framer.pending):
            self._timer.cancel()
        if self._framer.pending and not self.full:
            self.resume()
        if self._framer.pending or self.full or self._share.size:
            self._share.changed()
        return None if self._dropped else first

    def next_frame(self) -> bytes | None:
        """Remove and return the next frame; None if none waits."""
        if not self.frames:
            return None
        frame = self.frames.popleft()
        self._bytes -= len(frame)
        if self._share.size:
            self._share.changed()
        return frame

    def drop(self) -> None:
        """Drop all frames, whole and unfinished, because the connection ends."""
        self._dropped = True
        self.frames.clear()
        self._bytes = 0
        self._framer.forget()
        self._share.changed()
        self._timer.cancel()

    def pause(self) -> None:
        """Stop the unfinished frame's time: no bytes are read."""
        self._timer.cancel()

    def resume(self) -> None:
        """Give the unfinished frame its time from now on, unless it runs already."""
        if self._framer.pending and not self._timer.armed:
            self._timer.arm(self._frame_timeout_s)
