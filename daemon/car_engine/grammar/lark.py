"""Write a grammar in llguidance's dialect of Lark, with exactly the same meaning.

The library first cuts text into terminals, each as long as possible, and parses the terminals. Here every terminal is
one character, so that all have the same length; if several match a character the library tries all terminals. Left
recursion is refused, and tail recursion is written as repetition.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import chain

from car_engine.grammar.tree import (
    DEPTH_MAX,
    SYMBOLS_MAX,
    TERMINALS_MAX,
    Alternatives,
    Characters,
    Grammar,
    GrammarError,
    GrammarProblem,
    Item,
    Literal,
    Ranges,
    Reference,
    Repetition,
    Sequence,
    merged,
)


def refuse_left_recursion(grammar: Grammar) -> None:
    """Raise GrammarError if a rule reaches itself without a character in between."""
    empty = _rules_that_may_be_empty(grammar)
    reached = {
        name: dict.fromkeys(target for sequence in rule.sequences for target in _leftmost(sequence, empty))
        for name, rule in grammar.rules.items()
    }
    try:
        TopologicalSorter(reached).prepare()
    except CycleError as error:
        line = min(grammar.rules[name].line for name in error.args[1])
        raise GrammarError(GrammarProblem.LEFT_RECURSION, line) from None


def _leftmost(sequence: Sequence, empty: set[str]) -> Iterator[str]:
    """Yield the rules that a sequence may begin with."""
    for item in sequence:
        target = _repeated(item)
        if isinstance(target, Reference):
            yield target.name
        if not _may_be_empty(item, empty):
            return


def _repeated(item: Item) -> Characters | Literal | Reference:
    """Return the item, of a repetition the repeated item."""
    return item.item if isinstance(item, Repetition) else item


def _may_be_empty(item: Item, empty: set[str]) -> bool:
    if isinstance(item, Repetition) and item.least == 0:
        return True
    match _repeated(item):
        case Literal(text):
            return not text
        case Reference(name):
            return name in empty
        case _:
            return False


def _rules_that_may_be_empty(grammar: Grammar) -> set[str]:
    """Return the rules that match the empty text, in linear time.

    Each sequence counts down the rules that it needs; at 0 its own rule is found.
    """
    countdowns: list[list[str]] = []
    for name, rule in grammar.rules.items():
        for sequence in rule.sequences:
            targets = [_repeated(item) for item in sequence if not _may_be_empty(item, set())]
            needed = [target.name for target in targets if isinstance(target, Reference)]
            if len(needed) == len(targets):
                # The rule itself comes first, then one entry for each rule that its sequence needs.
                countdowns.append([name, *needed])
    waiting: dict[str, list[list[str]]] = defaultdict(list)
    for countdown in countdowns:
        for target in countdown[1:]:
            waiting[target].append(countdown)
    found = [countdown[0] for countdown in countdowns if len(countdown) == 1]
    empty: set[str] = set()
    while found:
        name = found.pop()
        for countdown in waiting.pop(name, ()):
            countdown.pop()
            if len(countdown) == 1:
                found.append(countdown[0])
        empty.add(name)
    return empty


# A rule at the end of another is inlined to find the recursion only if it has at most so many alternatives.
OPENED_MAX = 4
# Grammars written by hand need some hundred.
COPIED_MAX = 60_000


def without_tail_recursion(grammar: Grammar) -> Grammar:
    """Return the same grammar if no rule ends in itself, directly or through one other rule."""
    rewriter = _Rewriter(grammar)
    rules: dict[str, Alternatives] = {}
    for name, rule in grammar.rules.items():
        rules |= rewriter.rewritten(name, rule)
    return Grammar(rules)


class _Rewriter:
    """Rewrites the rules of one grammar, and copies at most COPIED_MAX items."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._left = COPIED_MAX  # items that may still be copied

    def rewritten(self, name: str, rule: Alternatives) -> dict[str, Alternatives]:
        """Return `name` as a repetition of its recursive alternatives, followed by another alternative."""
        opened = [variant for sequence in rule.sequences for variant in self._opened(sequence, name)]
        again = tuple(sequence[:-1] for sequence in opened if _ends_in(sequence, name))
        last = tuple(sequence for sequence in opened if not _ends_in(sequence, name))
        if not again or not last:
            return {name: rule}
        repeated, end = f"{name} again", f"{name} last"
        both = (Repetition(Reference(repeated), 0, None), Reference(end))
        return {
            name: Alternatives((both,), rule.line),
            repeated: Alternatives(again, rule.line),
            end: Alternatives(last, rule.line),
        }

    def _opened(self, sequence: Sequence, name: str) -> Iterator[Sequence]:
        """Yield the variants of a sequence: without and with its optional end, inlined if it leads to `name`."""
        if not sequence:
            yield sequence
            return
        head, tail = sequence[:-1], sequence[-1]
        if isinstance(tail, Repetition) and (tail.least, tail.most) == (0, 1) and self._leads_to(name, tail.item):
            yield head
            tail = tail.item
        if isinstance(tail, Reference) and tail.name != name and self._leads_to(name, tail):
            variants = self._grammar.rules[tail.name].sequences
            items = sum(len(head) + len(inner) for inner in variants)
            # Copies of long rules behind many heads would take all memory.
            if items <= self._left:
                self._left -= items
                yield from ((*head, *inner) for inner in variants)
                return
        yield (*head, tail)

    def _leads_to(self, name: str, item: object) -> bool:
        if not isinstance(item, Reference):
            return False
        sequences = self._grammar.rules[item.name].sequences
        return item.name == name or (len(sequences) <= OPENED_MAX and any(_ends_in(inner, name) for inner in sequences))


def _ends_in(sequence: Sequence, name: str) -> bool:
    return bool(sequence) and sequence[-1] == Reference(name)


_START = "start"
_RULE = re.compile("r[0-9]+")
_SUFFIXES = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def as_lark(grammar: Grammar) -> str:
    """Return the text of the same grammar; raises GrammarError for a grammar beyond the library's limits."""
    return _Writer(without_tail_recursion(grammar)).text()


class _Place:
    """A node of the prefix tree of sequences: the symbols that may follow, and whether a sequence ends here."""

    __slots__ = ("ends", "following")

    def __init__(self) -> None:
        self.following: dict[str, _Place] = {}
        self.ends = False


class _Writer:
    """Writes the rules that are reachable from the root."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._rules: dict[str, list[list[str]]] = {}  # written rules: branches of symbols
        self._lines = [1]  # of the source, by the number in a rule's name
        self._terminals: dict[Ranges, str] = {}
        self._names: dict[str, str] = {}  # by the source's name
        self._unwritten: list[str] = []
        self._symbols = 0

    def text(self) -> str:
        """Return all rules, the start first, then all terminals."""
        self._rules[_START] = [[self._rule("root")]]
        while self._unwritten:
            self._write(self._unwritten.pop())
        self._refuse_depth()
        rules = (f"{name}: {' | '.join(map(' '.join, branches))}" for name, branches in self._rules.items())
        terminals = []
        for ranges, name in self._terminals.items():
            parts = (f"\\u{{{low:x}}}" + (f"-\\u{{{high:x}}}" if high > low else "") for low, high in ranges)
            terminals.append(f"{name}: /[{''.join(parts)}]/")
        return "\n".join((*rules, *terminals, ""))

    def _rule(self, name: str) -> str:
        """Return the name of a rule in the output, and schedule it for writing."""
        if name not in self._names:
            self._names[name] = self._new_rule(self._grammar.rules[name].line)
            self._unwritten.append(name)
        return self._names[name]

    def _new_rule(self, line: int) -> str:
        self._lines.append(line)
        return f"r{len(self._lines) - 1}"

    def _write(self, name: str) -> None:
        """Write one rule, and one more for each node of its prefix tree at which sequences diverge."""
        line = self._grammar.rules[name].line
        partings = [(self._names[name], self._beginning(self._grammar.rules[name].sequences, line))]
        while partings:
            rule, place = partings.pop()
            self._rules[rule] = [['""']] if place.ends else []
            for symbol, following in place.following.items():
                branch, parting = [symbol], following
                # On to the next node where sequences end or diverge.
                while len(parting.following) == 1 and not parting.ends:
                    ((inner, parting),) = parting.following.items()
                    branch.append(inner)
                if parting.following:
                    branch.append(self._new_rule(line))
                    partings.append((branch[-1], parting))
                self._rules[rule].append(branch)

    def _beginning(self, sequences: tuple[Sequence, ...], line: int) -> _Place:
        """Return the root of the prefix tree of all sequences."""
        together: list[tuple[int, int]] = []  # of alternatives that are one character, which become one set
        others: list[Sequence] = []
        for sequence in sequences:
            match sequence:
                case (Characters(ranges),):
                    together.extend(ranges)
                case (Literal(text),) if len(text) == 1:
                    together.append((ord(text), ord(text)))
                case _:
                    others.append(sequence)
        beginning = _Place()
        for sequence in [*others, (Characters(merged(together)),)] if together else others:
            place = beginning
            for symbol in chain.from_iterable(map(self._symbols_of, sequence)):
                if symbol not in place.following:
                    self._symbols += 1 + symbol.count(" ")
                    if self._symbols > SYMBOLS_MAX or len(self._terminals) > TERMINALS_MAX:
                        raise GrammarError(GrammarProblem.TOO_LARGE, line)
                    place.following[symbol] = _Place()
                place = place.following[symbol]
            place.ends = True
        return beginning

    def _symbols_of(self, item: Item) -> Iterator[str]:
        """Yield the symbols of an item: of a repetition one, none if it is of nothing or 0 times."""
        match item:
            case Characters(ranges):
                yield self._terminal(ranges)
            case Literal(text):
                yield from (self._terminal(((ord(character), ord(character)),)) for character in text)
            case Reference(name):
                yield self._rule(name)
            case Repetition(repeated, least, most):
                symbols = list(self._symbols_of(repeated))
                if symbols and most != 0:
                    body = symbols[0] if len(symbols) == 1 else f"({' '.join(symbols)})"
                    counts = f"{{{least},{'' if most is None else most}}}"
                    yield body + _SUFFIXES.get((least, most), counts)

    def _terminal(self, ranges: Ranges) -> str:
        return self._terminals.setdefault(ranges, f"C{len(self._terminals)}")

    def _refuse_depth(self) -> None:
        """Walk as the library does; raises GrammarError if it would recurse beyond DEPTH_MAX."""
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
                raise GrammarError(GrammarProblem.TOO_DEEP, self._lines[int(deeper[1:])])

    def _referred(self, name: str) -> Iterator[str]:
        """Yield the rules that a rule names, in order."""
        for branch in self._rules[name]:
            for symbol in branch:
                if rule := _RULE.match(symbol):
                    yield rule[0]
