"""The most bytes that operators, methods and filters of a chat template make, by their operands."""

import re
from collections.abc import Iterable, Mapping, Sized
from typing import Any

from car_engine.prompt.template_memory import OBJECT_BYTES, REFERENCE_BYTES, MemoryBudget, TooMuchMemory, size_of

_MOST_BITS = 65_536
# The most characters that a filter writes for one of its value.
_TEXT_FACTORS = {
    "string": 1,
    "escape": 5,
    "e": 5,
    "forceescape": 5,
    "urlencode": 12,
    "xmlattr": 6,
    # They split into words.
    "striptags": OBJECT_BYTES,
    "title": OBJECT_BYTES,
    "wordcount": OBJECT_BYTES,
}
# Filters that take any value as text; what they make of a text is counted after.
_OF_TEXTS = frozenset({"capitalize", "lower", "safe", "trim", "truncate", "upper"})
# Filters that compare or hash their values and arguments.
_COMPARING = frozenset({"dictsort", "groupby", "max", "min", "sort", "unique"})
_BY_NAME = frozenset({"map", "reject", "rejectattr", "select", "selectattr"})
_COMPARING_CALLS = frozenset({"changed", "count", "dict", "fromkeys", "get", "index", "isdisjoint"})
_CONVERSION = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")
_NUMBER = re.compile(r"\d+")
ESCAPED = 5  # `"` becomes `&#34;`
# The longest name of a character has 83 letters, and `\N{}` around it.
_NAMED = 88
_ENCODED = 10  # `\U0001f600`


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
            return size_of_formatted(left, right, budget)
        case "%", bytes(), _:
            return size_of_formatted(left.decode("latin-1"), right, budget)
        case ("+", str(), _) | ("+", _, str()):
            # Arguments and functions become JSON beside a text.
            return _escaping(left, right) * (budget.text_size(left) + budget.text_size(right))
        case "+", (bytes() | list() | tuple()), _:
            return size_of(left) + size_of(right)
    return 0


def size_of_formatted(pattern: str, values: Any, budget: MemoryBudget) -> int:
    """Return the most bytes of a text that the operator % formats."""
    conversions = _CONVERSION.findall(pattern)
    given = values if isinstance(values, tuple) else (values,)
    widest = max((abs(each) for each in given if isinstance(each, int)), default=0)
    widths = sum(widest if each == "*" else int(each or 0) for pair in conversions for each in pair)
    # A mapping may be written once for each conversion; `%r` escapes characters.
    written = sum(budget.text_size(each) for each in given) * (len(conversions) if isinstance(values, Mapping) else 1)
    return size_of(pattern) + widths + ESCAPED * written


def size_of_field(value: object, form: str, budget: MemoryBudget) -> int:
    """Return the most bytes of one field of `str.format`."""
    return budget.text_size(value) + sum(map(int, _NUMBER.findall(form)))


def size_of_call(owner: object, name: str, given: tuple[Any, ...], budget: MemoryBudget) -> int:
    """Return the most bytes that a method of a builtin type makes beyond its own size; 0 for the others."""
    match owner, name:
        case ((str() | bytes()), _):
            return _size_of_text_call(owner, name, given, budget)
        case int(), "to_bytes":
            return _greatest(given)
        case _, "from_bytes":
            _check_bits(8 * max((len(each) for each in given if isinstance(each, Sized)), default=0))
        case _, "escape":
            return ESCAPED * sum(map(budget.text_size, given))
    if name in _COMPARING_CALLS:
        for each in given:
            budget.checked(each)
    if name in ("fromkeys", "maketrans"):
        return OBJECT_BYTES * max((len(each) for each in given if isinstance(each, Sized)), default=0)
    return 0


def _size_of_text_call(owner: str | bytes, name: str, given: tuple[Any, ...], budget: MemoryBudget) -> int:
    size, number = size_of(owner), _greatest(given)
    match name, given:
        case "center" | "ljust" | "rjust" | "zfill", _:
            return size + number * max((1, *map(size_of, given)))
        case "expandtabs", _:
            tabs = owner.count("\t") if isinstance(owner, str) else owner.count(b"\t")
            return size + tabs * max(number, 8)
        case "replace", [old, new, *_]:
            return size + owner.count(old) * size_of(new)
        case "join", [list() as values]:
            return _escaping(owner) * (size * len(values) + sum(map(size_of, values)))
        case "translate", [Mapping() as table]:
            return size * (1 + max((budget.text_size(each) for each in table.values()), default=0))
        case "split" | "rsplit" | "splitlines", _:
            pieces = owner.count(given[0]) if given and given[0] else len(owner) // 2
            return size + OBJECT_BYTES * (pieces + 1)
        case "partition" | "rpartition", _:
            return size
        case "encode" | "decode" | "hex", _:
            return (_NAMED if "namereplace" in given else _ENCODED) * len(owner)
    return 0


def size_of_filter(name: str, value: Any, given: list[Any], budget: MemoryBudget) -> int:
    """Return the most bytes that a filter of jinja makes of a value and its arguments."""
    number = _greatest(given)
    _check_operands(name, value, given, budget)
    match name:
        case "batch" | "slice":
            return OBJECT_BYTES * max(0, number) + 2 * REFERENCE_BYTES * len(value)
        case "sum":
            # Lists are added one after the other, and each sum is a list of its own.
            return len(value) * sum(map(size_of, value)) if any(isinstance(each, list) for each in given) else 0
        case "dictsort" | "groupby" | "unique" if isinstance(value, Sized):
            return 2 * OBJECT_BYTES * len(value)
        case _ if name in _OF_TEXTS and not isinstance(value, str):
            return budget.text_size(value)
        case _ if name in _TEXT_FACTORS:
            return _TEXT_FACTORS[name] * budget.text_size(value)
        case "center" | "indent" | "wordwrap" | "replace" | "join":
            return _size_spread(name, value, given, number, budget)
    return 0


def _check_operands(name: str, value: Any, given: list[Any], budget: MemoryBudget) -> None:
    """Raise TooMuchMemory for operands over which Python would spend hours without a pause for other threads."""
    if name in _COMPARING:
        budget.checked(value)
    if name in _COMPARING or name in _BY_NAME:
        for each in given:
            budget.checked(each)
    if name == "round":
        # An integer is multiplied by ten to this power.
        _check_bits(4 * max((abs(each) for each in given if isinstance(each, int)), default=0))
    if name == "int" and given and isinstance(value, str):
        _check_bits(6 * len(value))


def size_of_json(value: Any, indent: Any, separators: Any, budget: MemoryBudget) -> int:
    """Return the most bytes of a value as JSON."""
    size = budget.text_size(value)
    width = indent if isinstance(indent, int) else 0 if indent is None else size_of(indent)
    indentation = width * _levels(value) if width > 0 else 0
    return size * (6 + sum(map(size_of, separators or ()))) + indentation


def _levels(value: Any, level: int = 1) -> int:
    """Return the sum of the depths of all lines of a value as indented JSON."""
    match value:
        case Mapping():
            return level + sum(level + _levels(part, level + 1) for part in value.values())
        case list() | tuple():
            return level + sum(level + _levels(part, level + 1) for part in value)
    return 0


def _size_spread(name: str, value: Any, given: list[Any], number: int, budget: MemoryBudget) -> int:
    """Return the most bytes of a text into which an argument is put, perhaps many times."""
    size, each = budget.text_size(value), max(map(budget.text_size, given), default=0)
    match name:
        case "center":
            return max(size, number)
        case "join":
            return _escaping(value, *given) * (size + len(value) * each)
        case "indent":
            return size + (str(value).count("\n") + 1) * max(number, each, 4)
        case "replace":
            return size + (value.count(given[0]) if isinstance(value, str) else size) * each
    # Its text is split into words.
    return size * (OBJECT_BYTES + each)


def _greatest(given: Iterable[Any]) -> int:
    return max((each for each in given if isinstance(each, int)), default=0)


def _escaping(*values: Any) -> int:
    """Return the factor for texts that may be escaped, because some are marked as safe."""
    return ESCAPED if any(hasattr(each, "__html__") for each in values) else 1


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TooMuchMemory(f"it would make a number of {bits:,} bits, the limit is {_MOST_BITS:,}")
