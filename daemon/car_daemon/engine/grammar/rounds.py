"""Right recursion as repetition, which means the same and costs a parser no memory for each round."""

from collections.abc import Iterator

from car_daemon.engine.grammar.tree import Alternatives, Grammar, Reference, Repetition, Sequence

# A rule at the end of another is opened to find the way back only if it has no more alternatives than these.
OPENED_MAX = 4


def with_rounds(grammar: Grammar) -> Grammar:
    """Return the same grammar where no rule ends in itself, as far as that can be seen within two rules."""
    rules: dict[str, Alternatives] = {}
    for name, rule in grammar.rules.items():
        rules |= _with_rounds(name, rule, grammar)
    return Grammar(rules)


def _with_rounds(name: str, rule: Alternatives, grammar: Grammar) -> dict[str, Alternatives]:
    """Return `name` as what comes again and again, and what comes last."""
    opened = [variant for sequence in rule.sequences for variant in _opened(sequence, name, grammar)]
    again = tuple(sequence[:-1] for sequence in opened if _ends_in(sequence, name))
    last = tuple(sequence for sequence in opened if not _ends_in(sequence, name))
    if not again or not last:
        return {name: rule}
    rounds, end = f"{name} again", f"{name} last"
    both = (Repetition(Reference(rounds), 0, None), Reference(end))
    return {
        name: Alternatives((both,), rule.line),
        rounds: Alternatives(again, rule.line),
        end: Alternatives(last, rule.line),
    }


def _opened(sequence: Sequence, name: str, grammar: Grammar) -> Iterator[Sequence]:
    """Yield the variants of a sequence: without and with its optional end, which is opened if it leads to `name`."""
    if not sequence:
        yield sequence
        return
    head, tail = sequence[:-1], sequence[-1]
    if isinstance(tail, Repetition) and (tail.least, tail.most) == (0, 1) and _leads_to(name, tail.item, grammar):
        yield head
        tail = tail.item
    if isinstance(tail, Reference) and tail.name != name and _leads_to(name, tail, grammar):
        for inner in grammar.rules[tail.name].sequences:
            yield (*head, *inner)
    else:
        yield (*head, tail)


def _leads_to(name: str, item: object, grammar: Grammar) -> bool:
    if not isinstance(item, Reference):
        return False
    sequences = grammar.rules[item.name].sequences
    return item.name == name or (len(sequences) <= OPENED_MAX and any(_ends_in(inner, name) for inner in sequences))


def _ends_in(sequence: Sequence, name: str) -> bool:
    return bool(sequence) and sequence[-1] == Reference(name)
