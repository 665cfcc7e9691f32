"""Right recursion as repetition, which means the same and costs a parser no memory for each round."""

from collections.abc import Iterator

from car_daemon.engine.grammar.tree import Alternatives, Grammar, Reference, Repetition, Sequence

# A rule at the end of another is opened to find the way back only if it has no more alternatives than these.
OPENED_MAX = 4
# Grammars that people write need some hundred.
COPIED_MAX = 60_000


def with_rounds(grammar: Grammar) -> Grammar:
    """Return the same grammar where no rule ends in itself, as far as that can be seen within two rules."""
    rounds = _Rounds(grammar)
    rules: dict[str, Alternatives] = {}
    for name, rule in grammar.rules.items():
        rules |= rounds.rewritten(name, rule)
    return Grammar(rules)


class _Rounds:
    """Rewrites the rules of one grammar, of which it copies at most COPIED_MAX items."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        # Mutable state: how many more items may be copied.
        self._left = COPIED_MAX

    def rewritten(self, name: str, rule: Alternatives) -> dict[str, Alternatives]:
        """Return `name` as what comes again and again, and what comes last."""
        opened = [variant for sequence in rule.sequences for variant in self._opened(sequence, name)]
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

    def _opened(self, sequence: Sequence, name: str) -> Iterator[Sequence]:
        """Yield the variants of a sequence: without and with its optional end, opened if it leads to `name`."""
        if not sequence:
            yield sequence
            return
        head, tail = sequence[:-1], sequence[-1]
        if isinstance(tail, Repetition) and (tail.least, tail.most) == (0, 1) and self._leads_to(name, tail.item):
            yield head
            tail = tail.item
        if (
            isinstance(tail, Reference)
            and tail.name != name
            and self._leads_to(name, tail)
            and self._copies(head, tail)
        ):
            for inner in self._grammar.rules[tail.name].sequences:
                yield (*head, *inner)
        else:
            yield (*head, tail)

    def _leads_to(self, name: str, item: object) -> bool:
        if not isinstance(item, Reference):
            return False
        sequences = self._grammar.rules[item.name].sequences
        return item.name == name or (len(sequences) <= OPENED_MAX and any(_ends_in(inner, name) for inner in sequences))

    def _copies(self, head: Sequence, tail: Reference) -> bool:
        """Whether a rule may be copied behind a head: a long one behind many would take all memory."""
        items = sum(len(head) + len(inner) for inner in self._grammar.rules[tail.name].sequences)
        if items > self._left:
            return False
        self._left -= items
        return True


def _ends_in(sequence: Sequence, name: str) -> bool:
    return bool(sequence) and sequence[-1] == Reference(name)
