"""A place in a file that moves forwards: reads in windows, within the file and within what a header may take."""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from car_daemon.models.unsound import Reason, UnsoundModel, refuse

_WINDOW_BYTES = 1 << 18
_LENGTH = struct.Struct("<Q")
# A vocabulary of 260,000 tokens with its merges has 800,000 strings in 15 MB.
_HEADER_BYTES = 1 << 28
_HEADER_STRINGS = 1 << 22


class Cursor:
    """Reads numbers and strings; nothing is mapped, so a file that shrinks meanwhile is an error and no signal."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self._file = file
        # Mutable state: the bytes at hand, where they start in the file, the place in them, the strings so far.
        self._window = b""
        self._start = 0
        self._at = 0
        self._strings = 0

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._start + self._at

    @property
    def left(self) -> int:
        """Bytes to the end of the file."""
        return self.size - self.position

    def go_to(self, position: int) -> None:
        """Go to a place that was passed before."""
        self._start, self._at, self._window = position, 0, b""

    def skip(self, count: int) -> None:
        """Pass over bytes without reading them."""
        refuse(Reason.CUT_SHORT, when=count > self.left)
        refuse(Reason.TOO_LARGE, when=self.position + count > _HEADER_BYTES)
        self._at += count

    def take(self, count: int) -> bytes:
        """Read bytes."""
        self._hold(count)
        start = self._at
        self.skip(count)
        return self._window[start : self._at]

    def number(self, code: str) -> int:
        """Read one little-endian integer; `code` is one of `struct`."""
        (value,) = self.numbers(code, 1)
        return int(value)

    def numbers(self, code: str, count: int) -> tuple[int | float, ...]:
        """Read little-endian numbers."""
        return struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code)))

    def text(self, longest: int) -> bytes:
        """Read a string; what is longer is cut."""
        length = self.number("Q")
        start = self.take(min(length, longest))
        self.skip(length - len(start))
        return start

    def skip_strings(self, count: int) -> None:
        """Pass over strings, reading their lengths."""
        self._strings += count
        refuse(Reason.TOO_LARGE, when=self._strings > _HEADER_STRINGS)
        while count:
            self._hold(_LENGTH.size)
            passed, end = _walk(self._window, self._at, count)
            self.skip(end - self._at)
            count -= passed

    def strings(self, count: int) -> Iterator[list[bytes]]:
        """Yield strings that were passed before, some at a time."""
        while count:
            words, end = _words(self._window, self._at, count)
            self.skip(end - self._at)
            words = words or [self._string()]
            count -= len(words)
            yield words

    def _string(self) -> bytes:
        length = self.number("Q")
        refuse(Reason.TOO_LARGE, when=length > _WINDOW_BYTES)
        return self.take(length)

    def _hold(self, count: int) -> None:
        """Have at least so many bytes at hand."""
        if self._at + count <= len(self._window):
            return
        refuse(Reason.CUT_SHORT, when=count > self.left)
        refuse(Reason.TOO_LARGE, when=self.position + count > _HEADER_BYTES)
        self._start, self._at = self.position, 0
        try:
            self._file.seek(self._start)
            self._window = self._file.read(max(count, _WINDOW_BYTES))
        except OSError:
            raise UnsoundModel(Reason.UNREADABLE) from None
        refuse(Reason.CUT_SHORT, when=len(self._window) < count)


def _walk(window: bytes, at: int, count: int) -> tuple[int, int]:
    """Pass over at most `count` strings whose lengths are in the window; return how many, and where the last ends."""
    length_at, last = _LENGTH.unpack_from, len(window) - _LENGTH.size
    for passed in range(count):
        if at > last:
            return passed, at
        at += 8 + length_at(window, at)[0]
    return count, at


def _words(window: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """Return at most `count` strings that are in the window as a whole, and where the last ends."""
    length_at, size = _LENGTH.unpack_from, len(window)
    words: list[bytes] = []
    while len(words) < count and at + 8 <= size:
        end = at + 8 + length_at(window, at)[0]
        if end > size:
            break
        words.append(window[at + 8 : end])
        at = end
    return words, at
