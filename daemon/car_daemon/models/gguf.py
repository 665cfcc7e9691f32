"""The header of a GGUF file: its keys with their values, and where its tensors are; never their data."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from car_daemon.models.cursor import Cursor
from car_daemon.models.unsound import Reason, refuse

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_KEY_BYTES = 512
_TENSOR_NAME_BYTES = 63
_TEXT_BYTES = 1024
_DIMENSIONS = 4
# The least that one key with its value, and one tensor, take; and the most that llama.cpp, which compares each with
# each, reads in seconds.
_KEY_LEAST, _KEYS = 14, 1 << 14
_TENSOR_LEAST, _TENSORS = 33, 1 << 16

# By GGUF's number of a value's type, its code in `struct`.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PRINTABLE = frozenset(range(0x20, 0x7F))


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type, as a `struct` code or "s", and where they start in the file."""

    code: str
    count: int
    start: int


Value = int | float | bool | str | Array


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape, GGML's number of its type, where it starts in the data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensors' data; `end` is where it ends."""

    values: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    end: int


def read_header(cursor: Cursor, longer: Mapping[str, int] = MappingProxyType({})) -> Header:
    """Read from the start of a file; raises UnsoundModel. Texts are cut, `longer` says by key which less so."""
    _pass_magic(cursor)
    tensors, keys = cursor.number("Q"), cursor.number("Q")
    refuse(Reason.COUNTS, when=tensors * _TENSOR_LEAST + keys * _KEY_LEAST > cursor.left)
    refuse(Reason.TOO_LARGE, when=tensors > _TENSORS or keys > _KEYS)
    values = _read_values(cursor, keys, longer)
    return Header(values, _read_tensors(cursor, tensors), cursor.position)


def _pass_magic(cursor: Cursor) -> None:
    refuse(Reason.NOT_GGUF, when=cursor.left < len(_MAGIC) or cursor.take(len(_MAGIC)) != _MAGIC)
    version = cursor.number("I")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    refuse(Reason.BYTE_ORDER, when=swapped in _VERSIONS)
    refuse(Reason.VERSION, when=version not in _VERSIONS)


def _read_values(cursor: Cursor, count: int, longer: Mapping[str, int]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for _ in range(count):
        key = _read_name(cursor, _KEY_BYTES, Reason.KEY)
        refuse(Reason.KEY_TWICE, when=key in values)
        values[key] = _read_value(cursor, longer.get(key, _TEXT_BYTES))
    return values


def _read_name(cursor: Cursor, longest: int, reason: Reason) -> str:
    name = cursor.text(longest + 1)
    refuse(reason, when=not 0 < len(name) <= longest or not _PRINTABLE.issuperset(name))
    return name.decode("ascii")


def _read_value(cursor: Cursor, longest: int) -> Value:
    type = cursor.number("I")
    if type == _ARRAY:
        return _read_array(cursor)
    if type == _STRING:
        return cursor.text(longest).decode("utf-8", "replace")
    refuse(Reason.VALUE_TYPE, when=type not in _NUMBERS)
    (number,) = cursor.numbers(_NUMBERS[type], 1)
    refuse(Reason.VALUE, when=type == _BOOL and number > 1)
    return bool(number) if type == _BOOL else number


def _read_array(cursor: Cursor) -> Array:
    type, count = cursor.number("I"), cursor.number("Q")
    refuse(Reason.NESTED, when=type == _ARRAY)
    refuse(Reason.VALUE_TYPE, when=type != _STRING and type not in _NUMBERS)
    start, code = cursor.position, _NUMBERS.get(type, "s")
    width = struct.calcsize("Q" if type == _STRING else code)
    refuse(Reason.COUNTS, when=count * width > cursor.left)
    if type == _STRING:
        cursor.skip_strings(count)
    else:
        cursor.skip(count * width)
    return Array(code, count, start)


def _read_tensors(cursor: Cursor, count: int) -> tuple[TensorInfo, ...]:
    tensors = tuple(_read_tensor(cursor) for _ in range(count))
    refuse(Reason.TENSOR_TWICE, when=len({tensor.name for tensor in tensors}) < count)
    return tensors


def _read_tensor(cursor: Cursor) -> TensorInfo:
    name = _read_name(cursor, _TENSOR_NAME_BYTES, Reason.TENSOR_NAME)
    dimensions = cursor.number("I")
    refuse(Reason.SHAPE, when=not 1 <= dimensions <= _DIMENSIONS)
    shape = tuple(cursor.number("Q") for _ in range(dimensions))
    return TensorInfo(name, shape, cursor.number("I"), cursor.number("Q"))
