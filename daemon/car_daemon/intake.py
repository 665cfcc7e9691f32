"""What came from one client and is not carried out yet: whole frames in order, and the one that was begun."""

import asyncio
from collections import deque
from collections.abc import Callable

from car_daemon.held import Sharing
from car_protocol.framing import LineFramer
from car_protocol.limits import Limits

# More than that of frames that wait for their turn, and reading waits for them: a hang-up is noticed after them, and
# even the smallest of them take no second.
_MOST_BYTES = 256 * 1024


class Intake:
    """Calls `timed_out` for a frame that was begun and does not end; an idle connection lives for ever.

    What it holds is a share of what is held for all clients.
    """

    def __init__(self, limits: Limits, timed_out: Callable[[], None], share: Sharing) -> None:
        self._framer = LineFramer(limits.max_frame_bytes)
        self._frame_timeout_s = limits.frame_timeout_ms / 1000
        self._timed_out = timed_out
        self._share = share(lambda: self._bytes + self._framer.pending)
        # Mutable state: the frames and their bytes, and the timer of the unfinished one.
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def overflowed(self) -> bool:
        """Whether a frame was too long, so that nothing after it can be trusted."""
        return self._framer.overflowed

    @property
    def full(self) -> bool:
        """Whether so much waits that nothing more should be read."""
        return self._bytes > _MOST_BYTES

    def feed(self, data: bytes) -> None:
        """Take bytes of any chunking."""
        frames = self._framer.feed(data)
        self._frames.extend(frames)
        self._bytes += sum(map(len, frames))
        if self._framer.pending or self.full or self._share.size:
            self._share.changed()
        if frames or not self._framer.pending:
            self.stop_timer()
        self.start_timer()

    def take(self) -> bytes:
        """Return the next frame."""
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        if self._share.size:
            self._share.changed()
        return frame

    def drop(self) -> None:
        """Forget all of it."""
        self._frames.clear()
        self._bytes = 0
        self._framer.forget()
        self._share.changed()
        self.stop_timer()

    def start_timer(self) -> None:
        """Give an unfinished frame its time from now on, where none runs already."""
        if self._framer.pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._frame_timeout_s, self._timed_out)

    def stop_timer(self) -> None:
        """Let an unfinished frame take as long as it likes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
