"""The ways to start a prompt: where its cells come from, and what each way costs."""

from typing import NamedTuple

from car_engine.batching.cells import Reach
from car_engine.batching.prefix import Prefix
from car_engine.batching.reuse.copies import Copies
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.stored_prefix import StoredPrefix
from car_engine.batching.reuse.worth import Worth
from car_engine.batching.saved_cells import SavedPrefix
from car_engine.batching.sequences import Sequence, SequenceTable


class Start(NamedTuple):
    """A way to start a prompt: the idle sequence to take, the source of its cells, and how many are reused."""

    seconds: float  # until the prompt is computed, and those that later requests lose
    sequence: Sequence
    tokens: int = 0
    # host memory, a file, a running request, or the sequence's own cells
    source: SavedPrefix | StoredPrefix | Sequence | None = None


class Starts:
    """Finds the ways to start a prompt in an idle sequence."""

    def __init__(
        self,
        table: SequenceTable,
        copies: Copies,
        costs: MoveCosts,
        reach: Reach,
        worth: Worth,
    ) -> None:
        self._table = table
        self._copies = copies
        self._costs = costs
        self._reach = reach
        self._worth = worth

    def of(self, most: Prefix, idle: list[Sequence], spared: dict[int, float]) -> list[Start]:
        """Return the ways to start a prompt; of ways that cost the same the first is best."""
        costs, end = self._costs, len(most) + 1
        ways = [
            Start(
                costs.compute(tokens, end) + self._worth.lost(each, tokens, spared.get(each.number, 0.0)), each, tokens
            )
            for tokens, each in self.usable(idle, most)
        ]
        seconds, sequence, *_ = self.least_lost(idle, spared)
        ways += [
            Start(seconds + copy.seconds + costs.compute(copy.tokens, end), sequence, copy.tokens, copy.source)
            for copy in self._copies.of(most)
        ]
        busy = self.usable([each for each in self._table.sequences if each not in idle], most)
        # Of equal ones the one that has computed most.
        tokens, leader = max(busy, key=lambda found: (found[0], min(found[0], found[1].cells)), default=(0, None))
        if leader is not None:
            moved = min(costs.copy(), costs.save(tokens) + costs.restore(tokens)) + costs.compute(tokens, end)
            ways.append(Start(seconds + moved, sequence, tokens, leader))
        ways.append(Start(seconds + costs.compute(0, end), sequence))
        return ways

    def least_lost(self, idle: list[Sequence], spared: dict[int, float]) -> Start:
        """Return the idle sequence whose cells are worth least; of equal ones the lowest number, for packing."""
        losses = [Start(self._worth.lost(each, spared=spared.get(each.number, 0.0)), each) for each in idle]
        return min(losses, key=lambda loss: loss.seconds)

    def usable(self, sequences: list[Sequence], prefix: Prefix) -> list[tuple[int, Sequence]]:
        """Return the sequences with tokens that can be reused, and how many."""
        common = [(each.prefix.common(prefix), each) for each in sequences if each.prefix is not None]
        return [(tokens, each) for tokens, each in common if tokens and self._reach.continues(each, tokens)]
