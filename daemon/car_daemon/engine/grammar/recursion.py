"""Left recursion: a rule that could meet itself again before any character."""

from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from car_daemon.engine.grammar.tree import (
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
    """Raise `GrammarError` where a rule reaches itself without a character in between."""
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
    """Return what is there at least once, if the item is not skipped."""
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
    """Return all of them, in linear time: a rule that is found counts down what waits for it."""
    countdowns = [
        # The rule itself comes first, then one entry for each rule that its sequence waits for.
        [name, *needed]
        for name, rule in grammar.rules.items()
        for sequence in rule.sequences
        if (needed := _needed(sequence)) is not None
    ]
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


def _needed(sequence: Sequence) -> list[str] | None:
    """Return the rules that must be empty for a sequence to be; None if it never is."""
    needed = []
    for item in sequence:
        target = _repeated(item)
        if _may_be_empty(item, set()):
            continue
        if not isinstance(target, Reference):
            return None
        needed.append(target.name)
    return needed
