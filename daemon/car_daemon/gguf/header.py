"""The header of a GGUF file: its keys with their values and the places of its tensors, read within bounds."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

from car_daemon.gguf.invalid import Flaw, InvalidModel, refuse

_WINDOW_BYTES = 1 << 18
_LENGTH = struct.Struct("<Q")
# A vocabulary of 260,000 tokens with its merges has 800,000 strings in 15 MB.
_HEADER_BYTES = 1 << 28
_HEADER_STRINGS = 1 << 22
_TOO_LONG = f"it goes beyond {_HEADER_BYTES >> 20} MiB"
_TOO_MANY = f"it has more than {_HEADER_STRINGS} strings"


class BoundedReader:
    """Reads a file forwards in windows; without a mapping, so that a file that shrinks meanwhile raises no signal.

    All methods raise InvalidModel if the file or a bound ends.
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
        refuse(Flaw.CUT_SHORT, when=count > self.left)
        refuse(Flaw.TOO_LARGE, _TOO_LONG, when=self.position + count > _HEADER_BYTES)
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
        refuse(Flaw.TOO_LARGE, _TOO_MANY, when=self._strings > _HEADER_STRINGS)
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
                refuse(Flaw.TOO_LARGE, large, when=length > _WINDOW_BYTES)
                words = [self.read(length)]
            count -= len(words)
            yield words

    def _fill(self, count: int) -> None:
        """Have at least this many bytes in the window."""
        if self._at + count <= len(self._window):
            return
        refuse(Flaw.CUT_SHORT, when=count > self.left)
        refuse(Flaw.TOO_LARGE, _TOO_LONG, when=self.position + count > _HEADER_BYTES)
        self._start, self._at = self.position, 0
        try:
            self._file.seek(self._start)
            self._window = self._file.read(max(count, _WINDOW_BYTES))
        except OSError:
            raise InvalidModel(Flaw.UNREADABLE) from None
        refuse(Flaw.CUT_SHORT, when=len(self._window) < count)


def _walk(window: bytes, at: int, count: int) -> tuple[int, int]:
    """Skip at most `count` strings whose lengths are in the window; return their number and the end of the last."""
    length_at, last = _LENGTH.unpack_from, len(window) - _LENGTH.size
    for passed in range(count):
        if at > last:
            return passed, at
        at += 8 + length_at(window, at)[0]
    return count, at


_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_KEY_BYTES = 512
_TENSOR_NAME_BYTES = 63
_TEXT_BYTES = 1024
_DIMENSIONS = 4
# The least bytes of one key with its value, and of one tensor; the most keys and tensors that llama.cpp, which compares
# each with each, reads in seconds.
_KEY_LEAST, _KEYS = 14, 1 << 14
_TENSOR_LEAST, _TENSORS = 33, 1 << 16

# The `struct` code of each value type, by GGUF's number.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PRINTABLE = frozenset(range(0x20, 0x7F))


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type, a `struct` code or "s", from a position in the file."""

    code: str
    count: int
    start: int


Value = int | float | bool | str | Array


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape, GGML's number of its type, its offset in the data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensors' data; `end` is its size in bytes."""

    values: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    end: int


def read_header(reader: BoundedReader, longer: Mapping[str, int] = MappingProxyType({})) -> Header:
    """Read a header from the start of a file; raises InvalidModel.

    Texts are cut to 1,024 bytes, texts of the keys in `longer` to its lengths.
    """
    refuse(Flaw.NOT_GGUF, when=reader.left < len(_MAGIC) or reader.read(len(_MAGIC)) != _MAGIC)
    version = reader.number("I")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    refuse(Flaw.BYTE_ORDER, when=swapped in _VERSIONS)
    refuse(Flaw.VERSION, f"{version}; 2 and 3 are", when=version not in _VERSIONS)
    tensor_count, key_count = reader.number("Q"), reader.number("Q")
    refuse(Flaw.COUNTS, when=tensor_count * _TENSOR_LEAST + key_count * _KEY_LEAST > reader.left)
    large = f"it has {key_count} keys and {tensor_count} tensors, at most {_KEYS} and {_TENSORS} are read"
    refuse(Flaw.TOO_LARGE, large, when=tensor_count > _TENSORS or key_count > _KEYS)
    values: dict[str, Value] = {}
    for _ in range(key_count):
        key = _read_name(reader, _KEY_BYTES, Flaw.KEY)
        refuse(Flaw.KEY_TWICE, when=key in values)
        values[key] = _read_value(reader, longer.get(key, _TEXT_BYTES))
    tensors: list[TensorInfo] = []
    for _ in range(tensor_count):
        name = _read_name(reader, _TENSOR_NAME_BYTES, Flaw.TENSOR_NAME)
        dimensions = reader.number("I")
        refuse(Flaw.SHAPE, when=not 1 <= dimensions <= _DIMENSIONS)
        shape = tuple(reader.number("Q") for _ in range(dimensions))
        tensors.append(TensorInfo(name, shape, reader.number("I"), reader.number("Q")))
    refuse(Flaw.TENSOR_TWICE, when=len({tensor.name for tensor in tensors}) < tensor_count)
    return Header(values, tuple(tensors), reader.position)


def _read_name(reader: BoundedReader, longest: int, reason: Flaw) -> str:
    name = reader.text(longest + 1)
    refuse(reason, when=not 0 < len(name) <= longest or not _PRINTABLE.issuperset(name))
    return name.decode("ascii")


def _read_value(reader: BoundedReader, longest: int) -> Value:
    type = reader.number("I")
    if type == _ARRAY:
        return _read_array(reader)
    if type == _STRING:
        return reader.text(longest).decode("utf-8", "replace")
    refuse(Flaw.VALUE_TYPE, when=type not in _NUMBERS)
    (number,) = reader.numbers(_NUMBERS[type], 1)
    refuse(Flaw.VALUE, when=type == _BOOL and number > 1)
    return bool(number) if type == _BOOL else number


def _read_array(reader: BoundedReader) -> Array:
    type, count = reader.number("I"), reader.number("Q")
    refuse(Flaw.NESTED, when=type == _ARRAY)
    refuse(Flaw.VALUE_TYPE, when=type != _STRING and type not in _NUMBERS)
    start, code = reader.position, _NUMBERS.get(type, "s")
    width = struct.calcsize("Q" if type == _STRING else code)
    refuse(Flaw.COUNTS, when=count * width > reader.left)
    if type == _STRING:
        reader.skip_strings(count)
    else:
        reader.skip(count * width)
    return Array(code, count, start)
