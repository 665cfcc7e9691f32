"""Tree of a grammar: rules over characters; and the reasons for which a grammar is refused."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

# Surrogates are code points, but not characters.
LAST = 0x10FFFF
CHARACTERS = ((0x0, 0xD7FF), (0xE000, LAST))

# Bounds of a grammar's text.
NESTING_MAX = 100
ITEMS_MAX = 100_000
REPETITIONS_MAX = 100_000
# Bounds of llguidance: it recurses from rule to rule, about 5 KiB of stack each, and crashes when the stack ends; it
# counts in 16 bits, and a larger grammar fails there after seconds.
DEPTH_MAX = 250
SYMBOLS_MAX = 60_000
TERMINALS_MAX = 10_000

Ranges = tuple[tuple[int, int], ...]


class GrammarProblem(StrEnum):
    """Reasons for a refusal; none quotes the grammar."""

    NO_NAME = "a rule does not begin with a name"
    NO_BODY = "a name is not followed by ::="
    NO_ROOT = "the grammar lacks a rule named root"
    UNDEFINED = "a rule is not defined"
    UNEXPECTED = "a character is not expected here"
    NOT_CHARACTERS = "tokens of a model are not supported, only characters"
    OPEN_LITERAL = "a literal does not end"
    OPEN_CLASS = "a character class does not end"
    OPEN_GROUP = "a group does not end"
    ESCAPE = "an escape is not supported"
    NO_CHARACTER = "an escape is not a character"
    EMPTY_CLASS = "a character class has no characters"
    REVERSED_RANGE = "a range of characters ends before it begins"
    NOTHING_REPEATED = "a repetition follows no item"
    COUNT = "the count of a repetition is not valid"
    REVERSED_COUNT = "the count of a repetition ends before it begins"
    LARGE_COUNT = f"the count of a repetition is larger than {REPETITIONS_MAX:,}"
    LEFT_RECURSION = "a rule begins with itself (left recursion)"
    TOO_DEEP = f"nested too deeply: the limits are {NESTING_MAX} groups and {DEPTH_MAX} rules"
    TOO_LARGE = (
        f"the grammar is too large: the limits are {ITEMS_MAX:,} items, {SYMBOLS_MAX:,} symbols and "
        f"{TERMINALS_MAX:,} sets of characters"
    )


class GrammarError(ValueError):
    """A refused grammar, and the line at fault."""

    def __init__(self, problem: GrammarProblem, line: int) -> None:
        super().__init__(f"{problem} (line {line})")
        self.problem = problem
        self.line = line


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set: ascending ranges of code points that neither overlap nor touch."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Literal:
    """Fixed text, perhaps empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Repetition:
    """An item repeated `least` to `most` times; `most` is None without a limit."""

    item: Characters | Literal | Reference
    least: int
    most: int | None


Item = Characters | Literal | Reference | Repetition
Sequence = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of several sequences, and the line where they begin."""

    sequences: tuple[Sequence, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name, in order; a group is a rule under a name that GBNF cannot express."""

    rules: dict[str, Alternatives]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the same code points in ascending ranges that neither overlap nor touch."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def complement(ranges: Ranges) -> Ranges:
    """Return the code points that merged ranges leave out."""
    lows = [0, *(high + 1 for _, high in ranges)]
    highs = [*(low - 1 for low, _ in ranges), LAST]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low <= high)


def characters_in(ranges: Ranges) -> Ranges:
    """Return merged ranges without the code points that are not characters."""
    return tuple(
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in CHARACTERS
        if low <= last and high >= first
    )
