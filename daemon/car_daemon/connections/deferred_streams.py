"""Streams of one client that does not read: their chunks wait merged, and the largest contributors are paused."""

from typing import Protocol

from car_daemon.host.timers import Timer
from car_protocol.limits import Limits

# With more bytes unread a stream that adds to them is paused.
PAUSE_BYTES = 256 * 1024


class Stream(Protocol):
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
    """The streams of one connection whose chunks wait, and the paused ones, each cancelled after `slow_reader_ms`."""

    def __init__(self, limits: Limits) -> None:
        self._max_bytes = limits.max_output_bytes
        self._slow_reader_s = limits.slow_reader_ms / 1000
        self._deferred: dict[Stream, int] = {}  # bytes by stream
        self._paused: dict[Stream, Timer] = {}  # the time until it is cancelled, by stream

    def __repr__(self) -> str:
        return f"<DeferredStreams deferred={self.size} paused={len(self._paused)}>"

    @property
    def size(self) -> int:
        """Bytes of all merged chunks."""
        return sum(self._deferred.values())

    def add(self, stream: Stream, size: int) -> None:
        """Count bytes that a stream deferred."""
        self._deferred[stream] = self._deferred.get(stream, 0) + size

    def limit(self, stream: Stream, unwritten: int) -> None:
        """Cancel all where they defer too much together; else pause this stream where too much is unread."""
        deferred = self.size
        if deferred > self._max_bytes:
            for each in list(self._deferred):
                each.cancel("slow_reader")
        elif stream not in self._paused and deferred + unwritten > PAUSE_BYTES:
            timer = self._paused[stream] = Timer(lambda: stream.cancel("slow_reader"))
            timer.arm(self._slow_reader_s)
            stream.pause()

    def pauses(self, stream: Stream) -> bool:
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

    def forget(self, stream: Stream) -> None:
        """Count a stream no longer."""
        self._deferred.pop(stream, None)
        timer = self._paused.pop(stream, None)
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        """Count no stream any longer."""
        for stream in [*self._deferred, *self._paused]:
            self.forget(stream)
