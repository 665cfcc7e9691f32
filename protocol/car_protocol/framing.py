"""Newline-delimited frames, cut from a byte stream of any chunking."""

from car_protocol.limits import MAX_FRAME_BYTES

# Blocks of an unfinished frame have at least this size, because one growing buffer would be copied repeatedly.
_BLOCK_BYTES = 64 * 1024


class LineFramer:
    """Cuts lines from a byte stream; buffers at most `limit` bytes of one unfinished frame, `pending` bytes now.

    Once a frame exceeds the limit the rest of the stream is invalid: `overflowed` becomes true and stays true.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._blocks: list[bytes | bytearray] = []  # of the unfinished line; the last block may grow
        self.pending = 0
        self.overflowed = False

    def __repr__(self) -> str:
        return f"<LineFramer pending={self.pending} of {self.limit} overflowed={self.overflowed}>"

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes, without line ends and blank lines."""
        if self.overflowed:
            return []
        first, *lines = data.split(b"\n")
        if not lines:
            self._buffer(data)
            return []
        if self._blocks:
            first = b"".join([*self._blocks, first])
            self.forget()
        rest = lines.pop()
        frames = self._within_limit([first, *lines])
        if rest:
            self._buffer(rest)
        return frames

    def forget(self) -> None:
        """Drop the unfinished frame."""
        self._blocks.clear()
        self.pending = 0

    def _buffer(self, piece: bytes) -> None:
        # One byte more than the limit may be the carriage return of a `\r\n`.
        if self.pending + len(piece) > self.limit + piece.endswith(b"\r"):
            self._overflow()
        elif piece:
            self.pending += len(piece)
            self._append(piece)

    def _append(self, piece: bytes) -> None:
        if len(piece) >= _BLOCK_BYTES:
            self._blocks.append(piece)
            return
        last = self._blocks[-1] if self._blocks else piece
        if not isinstance(last, bytearray) or len(last) >= _BLOCK_BYTES:
            last = bytearray()
            self._blocks.append(last)
        last += piece

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
        self.forget()
