"""The memory of one rendering: a piece is measured before it exists, and the sum of all pieces is bounded."""

from collections.abc import ItemsView, Iterable, KeysView, Mapping, Sized, ValuesView
from types import MethodType
from typing import Any

_BUDGET_BYTES = 128 * 1024 * 1024
_INPUT_FACTOR = 64
# Of a value that is not a text, because it is measured item by item.
_MOST_WRITTEN = 16 * 1024 * 1024
# Bytes of an object or an entry, and of a reference.
OBJECT_BYTES = 64
REFERENCE_BYTES = 8
_WIDEST = 4  # bytes of a character beyond ASCII, at most


class TooMuchMemory(Exception):
    """A rendering would take more memory than it may."""


class MemoryBudget:
    """Counts the bytes that one rendering makes; none are given back, because a template keeps what it likes."""

    def __init__(self) -> None:
        self._left = _BUDGET_BYTES

    def begin(self, input_bytes: int) -> None:
        """Begin a rendering of this much input."""
        self._left = _BUDGET_BYTES + _INPUT_FACTOR * input_bytes

    def charge(self, size: int) -> None:
        """Count bytes that are about to be made; raises TooMuchMemory."""
        if size > self._left:
            raise TooMuchMemory(f"it would make a piece of {size:,} bytes, the limit leaves {self._left:,}")
        if size > 0:
            self._left -= size

    def text_size(self, value: object) -> int:
        """Return the size of a value as text; raises TooMuchMemory for one that is too large."""
        return size_of(value) if isinstance(value, str) else self._written(value, self._most_written)

    def checked(self, value: Any) -> Any:
        """Return a value that Python compares or hashes as a whole; raises TooMuchMemory for one that is too large.

        A list that contains another one twice, and so on 64 times, would be compared for ever, without a pause for
        other threads.
        """
        if not isinstance(value, str | int | float | None):
            self.text_size(value)
        return value

    def items(self, values: Iterable[Any]) -> list[Any]:
        """Return the items of an iterable, counted before, or one by one where their number is not known."""
        if isinstance(values, Sized):
            self.charge(_item_bytes(values) * len(values))
            return list(values)
        found: list[Any] = []
        for value in values:
            # Pairs and rows are made as the iterable yields them.
            self.charge(REFERENCE_BYTES + (OBJECT_BYTES if isinstance(value, list | tuple) else 0))
            found.append(value)
        return found

    def _written(self, value: object, left: int) -> int:
        match value:
            case str() | bytes():
                return size_of(value) + 2
            case int():
                return value.bit_length() // 3 + 2
            case Mapping():
                parts: Iterable[object] = (each for pair in value.items() for each in pair)
            case list() | tuple() | set() | frozenset() | KeysView() | ValuesView() | ItemsView():
                parts = value
            case MethodType():
                parts = (value.__self__,)
            case _:
                return OBJECT_BYTES
        size = OBJECT_BYTES
        for part in parts:
            size += self._written(part, left - size) + 2
            if size > left:
                raise TooMuchMemory(f"a value takes more than {self._most_written:,} bytes as text, the limit")
        return size

    @property
    def _most_written(self) -> int:
        return min(self._left, _MOST_WRITTEN)


def size_of(value: object) -> int:
    """Return the bytes of a value's own storage, without those of its items."""
    if isinstance(value, str):  # most values
        return len(value) if value.isascii() else _WIDEST * len(value)
    match value:
        case bytes():
            return len(value)
        case list() | tuple():
            return REFERENCE_BYTES * len(value)
        case dict() | set() | frozenset():
            return OBJECT_BYTES * len(value)
    return 0


def _item_bytes(values: Sized) -> int:
    """Return the bytes of an item in a list of these values; numbers of a range, pairs and characters are made new."""
    made = not values.isascii() if isinstance(values, str) else isinstance(values, range | ItemsView)
    return REFERENCE_BYTES + (OBJECT_BYTES if made else 0)
