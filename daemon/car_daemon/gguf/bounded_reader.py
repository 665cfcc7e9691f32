"""A reader of numbers and strings that stays within the file and within the bounds of a header."""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from car_daemon.gguf.invalid import InvalidModel, Reason, refuse

_WINDOW_BYTES = 1 << 18
_LENGTH = struct.Struct("<Q")
# A vocabulary of 260,000 tokens with its merges has 800,000 strings in 15 MB.
_HEADER_BYTES = 1 << 28
_HEADER_STRINGS = 1 << 22
_TOO_LONG = f"it goes beyond {_HEADER_BYTES >> 20} MiB"
_TOO_MANY = f"it has more than {_HEADER_STRINGS} strings"


class BoundedReader:
    """Reads a file forwards in windows; without a mapping, so that a file that shrinks meanwhile raises no signal.

    All methods raise InvalidModel where the file or a bound ends.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self._file = file
        self._window = b""
        self._start = 0  # of the window in the file
        self._at = 0  # the position in the window
        self._strings = 0  # passed over so far

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._start + self._at

    @property
    def left(self) -> int:
        """Bytes to the end of the file."""
        return self.size - self.position

    def go_to(self, position: int) -> None:
        """Return to a position that was passed before."""
        self._start, self._at, self._window = position, 0, b""

    def skip(self, count: int) -> None:
        """Skip bytes without reading them."""
        refuse(Reason.CUT_SHORT, when=count > self.left)
        refuse(Reason.TOO_LARGE, _TOO_LONG, when=self.position + count > _HEADER_BYTES)
        self._at += count

    def read(self, count: int) -> bytes:
        """Read bytes."""
        self._fill(count)
        start = self._at
        self.skip(count)
        return self._window[start : self._at]

    def number(self, code: str) -> int:
        """Read one little-endian integer of a `struct` code."""
        (value,) = self.numbers(code, 1)
        return int(value)

    def numbers(self, code: str, count: int) -> tuple[int | float, ...]:
        """Read little-endian numbers."""
        return struct.unpack(f"<{count}{code}", self.read(count * struct.calcsize(code)))

    def text(self, longest: int) -> bytes:
        """Read a string, cut to a length."""
        length = self.number("Q")
        start = self.read(min(length, longest))
        self.skip(length - len(start))
        return start

    def skip_strings(self, count: int) -> None:
        """Skip strings by their lengths."""
        self._strings += count
        refuse(Reason.TOO_LARGE, _TOO_MANY, when=self._strings > _HEADER_STRINGS)
        while count:
            self._fill(_LENGTH.size)
            passed, end = _walk(self._window, self._at, count)
            self.skip(end - self._at)
            count -= passed

    def strings(self, count: int) -> Iterator[list[bytes]]:
        """Yield strings in batches, after `go_to`."""
        length_at = _LENGTH.unpack_from
        while count:
            window, at = self._window, self._at
            words: list[bytes] = []
            while len(words) < count and at + 8 <= len(window):
                end = at + 8 + length_at(window, at)[0]
                if end > len(window):
                    break
                words.append(window[at + 8 : end])
                at = end
            self.skip(at - self._at)
            if not words:
                # The window ends within the next string.
                length = self.number("Q")
                large = f"a token has {length} bytes, at most {_WINDOW_BYTES} are read"
                refuse(Reason.TOO_LARGE, large, when=length > _WINDOW_BYTES)
                words = [self.read(length)]
            count -= len(words)
            yield words

    def _fill(self, count: int) -> None:
        """Have at least this many bytes in the window."""
        if self._at + count <= len(self._window):
            return
        refuse(Reason.CUT_SHORT, when=count > self.left)
        refuse(Reason.TOO_LARGE, _TOO_LONG, when=self.position + count > _HEADER_BYTES)
        self._start, self._at = self.position, 0
        try:
            self._file.seek(self._start)
            self._window = self._file.read(max(count, _WINDOW_BYTES))
        except OSError:
            raise InvalidModel(Reason.UNREADABLE) from None
        refuse(Reason.CUT_SHORT, when=len(self._window) < count)


def _walk(window: bytes, at: int, count: int) -> tuple[int, int]:
    """Skip at most `count` strings whose lengths are in the window; return their number and the end of the last."""
    length_at, last = _LENGTH.unpack_from, len(window) - _LENGTH.size
    for passed in range(count):
        if at > last:
            return passed, at
        at += 8 + length_at(window, at)[0]
    return count, at
