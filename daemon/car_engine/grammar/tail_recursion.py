"""Tail recursion rewritten as repetition: the same language, without a parser's memory growing each time."""

from collections.abc import Iterator

from car_engine.grammar.tree import Alternatives, Grammar, Reference, Repetition, Sequence

# A rule at the end of another is inlined to find the recursion only if it has at most so many alternatives.
OPENED_MAX = 4
# Grammars written by hand need some hundred.
COPIED_MAX = 60_000


def without_tail_recursion(grammar: Grammar) -> Grammar:
    """Return the same grammar where no rule ends in itself, directly or through one other rule."""
    rewriter = _Rewriter(grammar)
    rules: dict[str, Alternatives] = {}
    for name, rule in grammar.rules.items():
        rules |= rewriter.rewritten(name, rule)
    return Grammar(rules)


class _Rewriter:
    """Rewrites the rules of one grammar, of which it copies at most COPIED_MAX items."""

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
