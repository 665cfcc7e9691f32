"""Newline-delimited frames, cut from a byte stream of any chunking."""

from car_protocol.limits import MAX_FRAME_BYTES


class LineFramer:
    """Cut lines from a byte stream; holds at most `limit` bytes of one unfinished frame.

    Once a frame passes the limit nothing after it can be trusted: `overflowed` becomes true and stays true.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        # Mutable state: the unfinished line, and whether a line was too long.
        self._unfinished = bytearray()
        self.overflowed = False

    @property
    def pending(self) -> int:
        """Bytes of the unfinished frame."""
        return len(self._unfinished)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes, without line ends and blank lines."""
        if self.overflowed:
            return []
        first, *lines = data.split(b"\n")
        if not lines:
            self._hold(data)
            return []
        if self._unfinished:
            first = bytes(self._unfinished) + first
            self._unfinished.clear()
        rest = lines.pop()
        frames = self._within_limit([first, *lines])
        self._hold(rest)
        return frames

    def _hold(self, piece: bytes) -> None:
        # One byte more than the limit may still turn out to be the carriage return of a `\r\n`.
        if len(self._unfinished) + len(piece) > self.limit + 1:
            self._overflow()
        else:
            self._unfinished += piece

    def _within_limit(self, lines: list[bytes]) -> list[bytes]:
        frames = []
        for line in lines:
            frame = line.removesuffix(b"\r")
            if len(frame) > self.limit:
                self._overflow()
                break
            if frame.strip(b" \t\r"):
                frames.append(frame)
        return frames

    def _overflow(self) -> None:
        self.overflowed = True
        self._unfinished = bytearray()
