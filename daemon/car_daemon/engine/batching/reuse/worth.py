"""The worth of the cells of idle sequences: the seconds that later requests lose without them."""

from car_daemon.engine.batching.prefix import Prefix
from car_daemon.engine.batching.reuse.copies import Copies
from car_daemon.engine.batching.reuse.expected import Expected
from car_daemon.engine.batching.reuse.move_costs import MoveCosts
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.batching.table import SequenceTable

# How probable it is that cells are used again which were used just now, where no request that waits begins like them.
_LIKELY = 0.5


class Worth:
    """Values idle sequences: by waiting requests that begin like them, and by the time since their last use."""

    def __init__(self, table: SequenceTable, copies: Copies, costs: MoveCosts, expected: Expected) -> None:
        self._table = table
        self._copies = copies
        self._costs = costs
        self._expected = expected

    def awaited(self, idle: list[Sequence]) -> dict[int, float]:
        """Return the seconds that waiting requests are spared by each idle sequence alone, by its number."""
        spared: dict[int, float] = {}
        for _, prompt in self._expected.prompts:
            number, _, seconds = self._sparing(prompt, idle)
            if seconds:
                spared[number] = spared.get(number, 0.0) + seconds
        return spared

    def resident(self, idle: list[Sequence]) -> list[int]:
        """Return the waiting requests of which an idle sequence spares more than it leaves to compute."""
        return [key for key, prompt in self._expected.prompts if self._spares_most(prompt, idle)]

    def _spares_most(self, prompt: Prefix, idle: list[Sequence]) -> bool:
        _, tokens, seconds = self._sparing(prompt, idle)
        return seconds > self._costs.compute(tokens, len(prompt) + 1)

    def _sparing(self, prompt: Prefix, idle: list[Sequence]) -> tuple[int, int, float]:
        """Return the idle sequence with most cells of a prompt, their number, and the seconds that it alone spares."""
        common = [(each.prefix.common(prompt), each.number) for each in idle if each.prefix is not None]
        (tokens, number), (second, _), *_ = [*sorted(common, reverse=True), (0, 0), (0, 0)]
        if tokens == second:
            return number, tokens, 0.0
        return number, tokens, min(self._costs.compute(second, tokens), self._copies.seconds(prompt.cut(tokens)))

    def likely(self, sequence: Sequence) -> float:
        """Return how probable it is that the cells of an idle sequence are used again, without waiting requests."""
        age = (self._table.started - sequence.order) / len(self._table.sequences)
        return _LIKELY / (1 + age)

    def lost(self, sequence: Sequence, kept: int = 0, spared: float = 0.0) -> float:
        """Return the seconds that emptying an idle sequence probably costs; its first `kept` tokens stay in use."""
        if sequence.prefix is None or sequence.cells <= kept or self._replaced(sequence, kept, spared):
            return 0.0
        moved = self._costs.save(sequence.cells) + self._costs.restore(sequence.cells)
        if spared:
            return min(spared, moved)
        return self.likely(sequence) * min(self._regained(sequence, sequence.prefix, kept), moved)

    def saves(self, sequence: Sequence, kept: int = 0, spared: float = 0.0) -> bool:
        """Return whether it costs less to save cells now, and probably restore them, than probably to compute them."""
        if sequence.prefix is None or self._replaced(sequence, kept, spared):
            return False
        costs, cells = self._costs, sequence.cells
        if spared:
            return costs.save(cells) + costs.restore(cells) < spared
        likely = self.likely(sequence)
        regained = self._regained(sequence, sequence.prefix, kept)
        return costs.save(cells) + likely * costs.restore(cells) < likely * regained

    def _regained(self, sequence: Sequence, prefix: Prefix, kept: int) -> float:
        """Return the seconds to have the cells after the first `kept` again, where they are not saved now."""
        return min(self._costs.compute(kept, sequence.cells), self._copies.seconds(prefix.cut(sequence.cells)))

    def _replaced(self, sequence: Sequence, kept: int, spared: float) -> bool:
        """Return whether the next prompt takes the place of the rest: it goes on from more than it leaves."""
        return not spared and 0 < sequence.cells - kept <= kept
