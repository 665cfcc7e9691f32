"""Left recursion: a rule that reaches itself before any character."""

from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from car_engine.grammar.tree import (
    Characters,
    Grammar,
    GrammarError,
    Item,
    Literal,
    Problem,
    Reference,
    Repetition,
    Sequence,
)


def refuse_left_recursion(grammar: Grammar) -> None:
    """Raise GrammarError where a rule reaches itself without a character in between."""
    empty = _rules_that_may_be_empty(grammar)
    reached = {
        name: dict.fromkeys(target for sequence in rule.sequences for target in _leftmost(sequence, empty))
        for name, rule in grammar.rules.items()
    }
    try:
        TopologicalSorter(reached).prepare()
    except CycleError as error:
        line = min(grammar.rules[name].line for name in error.args[1])
        raise GrammarError(Problem.LEFT_RECURSION, line) from None


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
