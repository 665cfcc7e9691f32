"""What a grammar says, once its text is read: rules over characters, and why a grammar is refused."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

# Half of a surrogate pair is a code point, but no character that text could hold.
LAST = 0x10FFFF
CHARACTERS = ((0x0, 0xD7FF), (0xE000, LAST))

Ranges = tuple[tuple[int, int], ...]


class Problem(StrEnum):
    """All that can be wrong with a grammar; none quotes it."""

    NO_NAME = "a rule does not begin with a name"
    NO_BODY = "a name is not followed by ::="
    NO_ROOT = "there is no rule named root"
    UNDEFINED = "a rule is not defined"
    UNEXPECTED = "a character is not expected here"
    NOT_CHARACTERS = "tokens of a model are not supported, only characters"
    OPEN_LITERAL = "a literal does not end"
    OPEN_CLASS = "a character class does not end"
    OPEN_GROUP = "a group does not end"
    ESCAPE = "an escape is not known"
    NO_CHARACTER = "an escape is no character"
    EMPTY_CLASS = "a character class holds no character"
    REVERSED_RANGE = "a range of characters ends before it begins"
    NOTHING_REPEATED = "a repetition repeats nothing"
    COUNT = "a repetition has no valid count"
    REVERSED_COUNT = "a repetition ends before it begins"
    LARGE_COUNT = "a repetition is too large"
    LEFT_RECURSION = "left recursion"
    TOO_DEEP = "nested too deeply"
    TOO_LARGE = "the grammar is too large"


class GrammarError(ValueError):
    """A grammar that is refused, and the line that is at fault."""

    def __init__(self, problem: Problem, line: int) -> None:
        super().__init__(f"{problem} (line {line})")
        self.problem = problem
        self.line = line


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set: ranges of code points, ascending and apart from each other."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Literal:
    """These characters, one after another; perhaps none."""

    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """What another rule says."""

    name: str


@dataclass(frozen=True, slots=True)
class Repetition:
    """An item several times; without `most` there is no limit."""

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
    """Rules by name, in order; a group is a rule too, by a name that no text can write."""

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
    """Return merged ranges without the code points that are no characters."""
    return tuple(
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in CHARACTERS
        if low <= last and high >= first
    )
