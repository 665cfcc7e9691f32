"""Write a grammar in the dialect of Lark that llguidance reads, with exactly the same meaning.

That library cuts text into terminals first, each as long as it can be, and parses those. Here every terminal is
one character, so there is no longer or shorter one to choose; where several hold a character it tries them all.
"""

import re
from collections.abc import Iterator

from car_daemon.engine.grammar.rounds import with_rounds
from car_daemon.engine.grammar.tree import (
    Characters,
    Grammar,
    GrammarError,
    Item,
    Literal,
    Problem,
    Ranges,
    Reference,
    Repetition,
    Sequence,
    merged,
)

# The library descends from rule to rule by recursion, some 5 KiB of stack each, and dies where the stack ends.
DEPTH_MAX = 250
# The library counts in 16 bits: a grammar beyond this fails there, after seconds.
SYMBOLS_MAX = 60_000
TERMINALS_MAX = 10_000

_START = "start"
_RULE = re.compile("r[0-9]+")
_SUFFIXES = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def as_lark(grammar: Grammar) -> str:
    """Return the text of the same grammar; `GrammarError` if the library could not hold it."""
    return _Writer(with_rounds(grammar)).text()


class _Place:
    """A place in sequences that begin alike: what may follow, and whether one ends here."""

    __slots__ = ("ends", "following")

    def __init__(self) -> None:
        self.following: dict[str, _Place] = {}
        self.ends = False


class _Writer:
    """Writes the rules that the root can reach."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        # Mutable state: what was written, the names that were given, and what is still to write.
        self._rules: dict[str, list[list[str]]] = {}
        self._lines = [1]
        self._terminals: dict[Ranges, str] = {}
        self._names: dict[str, str] = {}
        self._unwritten: list[str] = []
        self._symbols = 0

    def text(self) -> str:
        """Return all rules, the start first, then all terminals."""
        self._rules[_START] = [[self._rule("root")]]
        while self._unwritten:
            self._write(self._unwritten.pop())
        self._refuse_depth()
        rules = (f"{name}: {' | '.join(map(' '.join, branches))}" for name, branches in self._rules.items())
        terminals = (f"{name}: /[{_as_regex(ranges)}]/" for ranges, name in self._terminals.items())
        return "\n".join((*rules, *terminals, ""))

    def _rule(self, name: str) -> str:
        """Return what a rule is called here, and see to it that it is written."""
        if name not in self._names:
            self._names[name] = self._new_rule(self._grammar.rules[name].line)
            self._unwritten.append(name)
        return self._names[name]

    def _new_rule(self, line: int) -> str:
        self._lines.append(line)
        return f"r{len(self._lines) - 1}"

    def _write(self, name: str) -> None:
        """Write one rule, and one more for each place where sequences that began alike part."""
        line = self._grammar.rules[name].line
        partings = [(self._names[name], self._beginning(self._grammar.rules[name].sequences, line))]
        while partings:
            rule, place = partings.pop()
            self._rules[rule] = [['""']] if place.ends else []
            for symbol, following in place.following.items():
                branch, parting = _until_parting(symbol, following)
                if parting.following:
                    branch.append(self._new_rule(line))
                    partings.append((branch[-1], parting))
                self._rules[rule].append(branch)

    def _beginning(self, sequences: tuple[Sequence, ...], line: int) -> _Place:
        """Return the place where all sequences begin."""
        beginning = _Place()
        for sequence in _with_one_set(sequences):
            place = beginning
            for symbol in self._symbols_of(sequence):
                if symbol not in place.following:
                    self._count_symbols(1 + symbol.count(" "), line)
                    place.following[symbol] = _Place()
                place = place.following[symbol]
            place.ends = True
        return beginning

    def _count_symbols(self, number: int, line: int) -> None:
        self._symbols += number
        if self._symbols > SYMBOLS_MAX or len(self._terminals) > TERMINALS_MAX:
            raise GrammarError(Problem.TOO_LARGE, line)

    def _symbols_of(self, sequence: Sequence) -> Iterator[str]:
        for item in sequence:
            yield from self._symbols_of_item(item)

    def _symbols_of_item(self, item: Item) -> Iterator[str]:
        match item:
            case Characters(ranges):
                yield self._terminal(ranges)
            case Literal(text):
                yield from (self._terminal(((ord(character), ord(character)),)) for character in text)
            case Reference(name):
                yield self._rule(name)
            case Repetition():
                yield from self._repeated(item)

    def _repeated(self, repetition: Repetition) -> Iterator[str]:
        """Yield one symbol; none where nothing is repeated, or no times."""
        symbols = list(self._symbols_of_item(repetition.item))
        if symbols and repetition.most != 0:
            body = symbols[0] if len(symbols) == 1 else f"({' '.join(symbols)})"
            yield body + _suffix(repetition)

    def _terminal(self, ranges: Ranges) -> str:
        return self._terminals.setdefault(ranges, f"C{len(self._terminals)}")

    def _refuse_depth(self) -> None:
        """Walk as the library does, and refuse where it would be too deep in rules."""
        seen = {_START}
        walk = [self._referred(_START)]
        while walk:
            deeper = next((name for name in walk[-1] if name not in seen), None)
            if deeper is None:
                walk.pop()
                continue
            seen.add(deeper)
            walk.append(self._referred(deeper))
            if len(walk) > DEPTH_MAX:
                raise GrammarError(Problem.TOO_DEEP, self._lines[int(deeper[1:])])

    def _referred(self, name: str) -> Iterator[str]:
        """Yield the rules that a rule names, in order."""
        for branch in self._rules[name]:
            for symbol in branch:
                if rule := _RULE.match(symbol):
                    yield rule[0]


def _with_one_set(sequences: tuple[Sequence, ...]) -> Iterator[Sequence]:
    """Yield the same alternatives, but as one set of characters all those that are one character."""
    together: list[tuple[int, int]] = []
    for sequence in sequences:
        ranges = _one_character(sequence)
        together.extend(ranges)
        if not ranges:
            yield sequence
    if together:
        yield (Characters(merged(together)),)


def _one_character(sequence: Sequence) -> Ranges:
    """Return the characters that a sequence may be, if it is always one; else none."""
    match sequence:
        case (Characters(ranges),):
            return ranges
        case (Literal(text),) if len(text) == 1:
            return ((ord(text), ord(text)),)
        case _:
            return ()


def _until_parting(symbol: str, place: _Place) -> tuple[list[str], _Place]:
    """Return the symbols up to the next place where sequences end or part, and that place."""
    symbols = [symbol]
    while len(place.following) == 1 and not place.ends:
        symbol, place = next(iter(place.following.items()))
        symbols.append(symbol)
    return symbols, place


def _suffix(repetition: Repetition) -> str:
    least, most = repetition.least, repetition.most
    if suffix := _SUFFIXES.get((least, most)):
        return suffix
    return f"{{{least},{'' if most is None else most}}}"


def _as_regex(ranges: Ranges) -> str:
    return "".join(f"\\u{{{low:x}}}" + (f"-\\u{{{high:x}}}" if high > low else "") for low, high in ranges)
