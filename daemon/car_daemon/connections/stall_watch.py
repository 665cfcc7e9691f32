"""A client that reads nothing while too much waits for it."""

from collections.abc import Callable

from car_daemon.host.timers import Timer
from car_protocol.limits import Limits

# A client that reads nothing for `slow_reader_ms` is dropped when more than this many times `max_output_bytes` waits.
_ABANDON_FACTOR = 4


class StallWatch:
    """Calls `stalled` where a client read none of too many `unwritten` bytes for `slow_reader_ms`.

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
        """Check later that the client read any of the bytes, where too many wait."""
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
