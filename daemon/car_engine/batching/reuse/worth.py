"""The worth of the cells of idle sequences: the seconds that later requests lose without them."""

from operator import attrgetter

from car_engine.batching.cells import CellMover
from car_engine.batching.prefix import WORTH_TOKENS, Prefix, SavedPrefix
from car_engine.batching.reuse.expected import Expected
from car_engine.batching.reuse.index import Index, Mark
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.sequences import Sequence, SequenceTable

# How probable it is that cells are used again which were used just now, if no request that waits begins like them.
_LIKELY = 0.5


class Worth:
    """Values idle sequences: by waiting requests that begin like them, and by the time since their last use."""

    def __init__(
        self, table: SequenceTable, index: Index, costs: MoveCosts, expected: Expected, cells: CellMover
    ) -> None:
        self._table = table
        self._index = index
        self._costs = costs
        self._expected = expected
        self._cells = cells

    def awaited(self, idle: list[Sequence]) -> dict[int, float]:
        """Return the seconds that waiting requests are spared by each idle sequence alone, by its number.

        What they begin with counts as used now, so that others leave host memory before it.
        """
        spared: dict[int, float] = {}
        for _, prompt in self._expected.prompts:
            marks = self._marks(prompt)
            for kind in (marks, [mark for mark in marks if isinstance(mark.source, SavedPrefix)]):
                if kind:
                    most = max(kind, key=attrgetter("tokens"))
                    self._cells.used(prompt.cut(most.tokens), most.source)
            number, tokens, otherwise = self._longest(marks, idle)
            if tokens > otherwise:
                alone = min([self._costs.compute(otherwise, tokens), *self._read(prompt.cut(tokens))])
                spared[number] = spared.get(number, 0.0) + alone
        return spared

    def resident(self, idle: list[Sequence]) -> list[int]:
        """Return the waiting requests that lose more without an idle sequence than it leaves them to compute."""
        return [key for key, prompt in self._expected.prompts if self._spares_most(prompt, idle)]

    def likely(self, sequence: Sequence) -> float:
        """Return how probable it is that the cells of an idle sequence are used again, without waiting requests."""
        age = (self._table.started - sequence.order) / len(self._table.sequences)
        return _LIKELY / (1 + age)

    def lost(self, sequence: Sequence, kept: int = 0, spared: float = 0.0) -> float:
        """Return the seconds that emptying an idle sequence probably costs; its first `kept` tokens stay in use."""
        if sequence.prefix is None or sequence.cells - kept < (WORTH_TOKENS if kept else 1):
            return 0.0
        moved = self._moved(sequence)
        if spared:
            return min(spared, moved)
        return self.likely(sequence) * min(self._regained(sequence.prefix, kept), moved)

    def saves(self, sequence: Sequence, kept: int = 0, spared: float = 0.0) -> bool:
        """Return whether it costs less to save cells now, and probably restore them, than probably to compute them."""
        if sequence.prefix is None or sequence.cells - kept < (WORTH_TOKENS if kept else 1):
            return False
        if spared:
            return self._moved(sequence) < spared
        costs, cells, likely = self._costs, sequence.cells, self.likely(sequence)
        return costs.save(cells) + likely * costs.restore(cells) < likely * self._regained(sequence.prefix, kept)

    def _spares_most(self, prompt: Prefix, idle: list[Sequence]) -> bool:
        number, tokens, otherwise = self._longest(self._marks(prompt), idle)
        costs, left = self._costs, self._costs.compute(tokens, len(prompt) + 1)
        spared = costs.restore(otherwise) + costs.compute(otherwise, tokens)
        if min([spared, *self._read(prompt.cut(tokens))]) <= left:
            return False
        sequence = self._table.sequences[number]
        return self._moved(sequence) > left or not self._cells.fits(sequence)

    def _moved(self, sequence: Sequence) -> float:
        """Return the seconds to save the cells of a sequence and to restore them."""
        return self._costs.save(sequence.cells) + self._costs.restore(sequence.cells)

    def _marks(self, prompt: Prefix) -> list[Mark]:
        return [mark for mark in self._index.marks(prompt) if mark.tokens]

    def _longest(self, marks: list[Mark], idle: list[Sequence]) -> tuple[int, int, int]:
        """Return the idle sequence with most cells of a prompt, their number, and how many there are elsewhere."""
        found = [(mark.tokens, mark.source.number) for mark in marks if mark.source in idle]
        (tokens, number), (second, _), *_ = [*sorted(found, reverse=True), (0, 0), (0, 0)]
        saved = [min(mark.tokens, tokens) for mark in marks if isinstance(mark.source, SavedPrefix)]
        return number, tokens, max([second, *saved])

    def _read(self, prefix: Prefix) -> list[float]:
        """Return the seconds to have the cells of a prefix again that are in a file; empty if there is none."""
        costs, end = self._costs, len(prefix)
        found = [(mark.cells, mark.tokens) for mark in self._index.files(prefix) if mark.tokens]
        return [costs.read(cells) + costs.restore(cells) + costs.compute(tokens, end) for cells, tokens in found]

    def _regained(self, prefix: Prefix, kept: int) -> float:
        """Return the seconds to have the cells after the first `kept` again, if they are not saved now."""
        return min([self._costs.compute(kept, len(prefix)), *self._read(prefix)])
