"""The memory of one rendering: a piece is measured before it exists, and the sum of all pieces is bounded."""

import re
from collections.abc import Iterable, Mapping, Sized
from typing import Any

_BUDGET_BYTES = 128 * 1024 * 1024
_INPUT_FACTOR = 64
_MOST_BITS = 65_536
# Of a value that is not a text, because it is measured item by item.
_MOST_WRITTEN = 16 * 1024 * 1024
# Bytes of an object or an entry, and of a reference.
OBJECT_BYTES = 64
REFERENCE_BYTES = 8
# The most characters that a filter writes for one of its value.
_TEXT_FACTORS = {
    "string": 1,
    "tojson": 6,
    "pprint": 6,
    "escape": 5,
    "e": 5,
    "forceescape": 5,
    "urlencode": 12,
    "xmlattr": 6,
    "striptags": 1,
}
_CONVERSION = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")
_NUMBER = re.compile(r"\d+")


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
        self._left -= max(0, size)

    def text_size(self, value: object) -> int:
        """Return the size of a value as text; raises TooMuchMemory for one that is too large."""
        return len(value) if isinstance(value, str) else self._written(value, min(self._left, _MOST_WRITTEN))

    def items(self, values: Iterable[Any]) -> list[Any]:
        """Return the items of an iterable, counted before, or one by one where their number is not known."""
        if isinstance(values, Sized):
            self.charge(REFERENCE_BYTES * len(values))
            return list(values)
        found: list[Any] = []
        for value in values:
            self.charge(REFERENCE_BYTES)
            found.append(value)
        return found

    def _written(self, value: object, left: int) -> int:
        match value:
            case str() | bytes():
                return len(value) + 2
            case int():
                return value.bit_length() // 3 + 2
            case Mapping():
                parts: Iterable[object] = (each for pair in value.items() for each in pair)
            case list() | tuple() | set() | frozenset():
                parts = value
            case _:
                return OBJECT_BYTES
        size = OBJECT_BYTES
        for part in parts:
            size += self._written(part, left - size) + 2
            if size > left:
                raise TooMuchMemory(f"it would write a text of more than {left:,} bytes")
        return size


def size_of(value: object) -> int:
    """Return the bytes of a value's own storage, without those of its items."""
    match value:
        case str() | bytes():
            return len(value)
        case list() | tuple():
            return REFERENCE_BYTES * len(value)
        case dict() | set() | frozenset():
            return OBJECT_BYTES * len(value)
    return 0


def size_of_operation(operator: str, left: Any, right: Any, budget: MemoryBudget) -> int:
    """Return the most bytes that the result of a binary operation takes; raises TooMuchMemory."""
    match operator, left, right:
        case "*", int(), int():
            _check_bits(left.bit_length() + right.bit_length())
        case "**", int(), int():
            _check_bits(left.bit_length() * max(0, right))
        case "*", (str() | bytes() | list() | tuple()), int():
            return size_of(left) * max(0, right)
        case "*", int(), (str() | bytes() | list() | tuple()):
            return size_of(right) * max(0, left)
        case "%", str(), _:
            return size_formatted(left, right, budget)
        case ("+", str(), _) | ("+", _, str()):
            # Arguments and functions become JSON beside a text.
            return budget.text_size(left) + budget.text_size(right)
        case "+", (bytes() | list() | tuple()), _:
            return size_of(left) + size_of(right)
    return 0


def size_formatted(pattern: str, values: Any, budget: MemoryBudget) -> int:
    """Return the most bytes of a text that the operator % formats."""
    conversions = _CONVERSION.findall(pattern)
    given = values if isinstance(values, tuple) else (values,)
    widest = max((abs(each) for each in given if isinstance(each, int)), default=0)
    widths = sum(widest if each == "*" else int(each or 0) for pair in conversions for each in pair)
    # A mapping may be written once for each conversion; `%r` escapes characters.
    written = sum(budget.text_size(each) for each in given) * (len(conversions) if isinstance(values, Mapping) else 1)
    return len(pattern) + widths + 4 * written


def size_of_field(value: object, form: str, budget: MemoryBudget) -> int:
    """Return the most bytes of one field of `str.format`."""
    return budget.text_size(value) + sum(map(int, _NUMBER.findall(form)))


def size_of_call(owner: object, name: str, given: tuple[Any, ...], budget: MemoryBudget) -> int:
    """Return the most bytes that a method of a builtin type makes beyond its own size; 0 for the others."""
    match owner, name, given:
        case ((str() | bytes()), "center" | "ljust" | "rjust" | "zfill", [int() as width, *_]):
            return max(len(owner), width)
        case str(), "expandtabs", _:
            return len(owner) + owner.count("\t") * max((int(each) for each in given), default=8)
        case ((str() | bytes()), "replace", [old, new, *_]):
            return len(owner) + owner.count(old) * len(new)
        case ((str() | bytes()), "join", [list() as values]):
            return len(owner) * len(values) + sum(map(size_of, values))
        case str(), "translate", [table]:
            return len(owner) * (1 + max((budget.text_size(each) for each in table.values()), default=0))
        case ((str() | bytes()), "split" | "rsplit" | "splitlines", _):
            pieces = owner.count(given[0]) if given and given[0] else len(owner) // 2
            return len(owner) + OBJECT_BYTES * (pieces + 1)
        case ((str() | bytes()), "encode" | "decode" | "hex", _):
            return 4 * len(owner)
        case int(), "to_bytes", [int() as length, *_]:
            return length
    return 0


def size_of_filter(name: str, value: Any, given: list[Any], budget: MemoryBudget) -> int:
    """Return the most bytes that a filter of jinja makes of a value and its arguments."""
    number = max((each for each in given if isinstance(each, int)), default=0)
    match name:
        case "format":
            return size_formatted(str(value), tuple(given), budget)
        case "batch" | "slice":
            return OBJECT_BYTES * max(0, number)
        case "sum":
            # Lists are added one after the other, and each sum is a list of its own.
            return len(value) * sum(map(size_of, value)) if any(isinstance(each, list) for each in given) else 0
        case _ if name in _TEXT_FACTORS:
            return _TEXT_FACTORS[name] * budget.text_size(value)
        case "center" | "indent" | "wordwrap" | "replace" | "join" | "urlize":
            return _size_spread(name, value, given, number, budget)
    return 0


def _size_spread(name: str, value: Any, given: list[Any], number: int, budget: MemoryBudget) -> int:
    """Return the most bytes of a text into which an argument is put, perhaps many times."""
    size, each = budget.text_size(value), max(map(budget.text_size, given), default=0)
    match name:
        case "center":
            return max(size, number)
        case "join":
            return size + len(value) * each
        case "indent":
            return size + (str(value).count("\n") + 1) * max(number, each, 4)
        case "replace":
            return size + (value.count(given[0]) if isinstance(value, str) else size) * each
    return size * (8 + each)


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TooMuchMemory(f"it would make a number of {bits:,} bits, the limit is {_MOST_BITS:,}")
