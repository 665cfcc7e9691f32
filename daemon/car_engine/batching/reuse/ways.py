"""The ways to start a prompt: where its cells come from, and what each way costs."""

from collections.abc import Iterator
from typing import NamedTuple

from car_engine.batching.cells import CellMover
from car_engine.batching.prefix import WORTH_TOKENS, Prefix, SavedPrefix
from car_engine.batching.reuse.followers import COMING
from car_engine.batching.reuse.index import Cells, Mark
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.reuse.neighbours import Neighbours
from car_engine.batching.reuse.worth import Worth
from car_engine.batching.sequences import Phase, Sequence


class Way(NamedTuple):
    """A way to start a prompt: the idle sequence to take, how many cells are reused, and their source."""

    # The sum of what computing the prompt takes, of what later requests lose, and of what decodes take longer.
    seconds: float
    sequence: Sequence
    tokens: int = 0
    source: Cells | None = None


class Ways:
    """Finds the ways to start a prompt in an idle sequence."""

    def __init__(self, costs: MoveCosts, worth: Worth, neighbours: Neighbours, cells: CellMover) -> None:
        self._costs = costs
        self._worth = worth
        self._neighbours = neighbours
        self._cells = cells

    def best(self, most: Prefix, marks: list[Mark], idle: list[Sequence], spared: dict[int, float]) -> Way:
        """Return the way to start a prompt that costs least; among equals the way whose source has computed most."""
        end, placed = len(most) + 1, self._neighbours.seconds(idle)
        victims = self._victims(idle, spared, placed)
        ways = [way for mark in marks for way in self._of(mark, end, victims, spared, placed) if way.tokens]
        sequence, lost = victims[0]
        return min([*ways, Way(lost + self._costs.compute(0, end), sequence)], key=_order)

    def victim(self, idle: list[Sequence], spared: dict[int, float]) -> Sequence:
        """Return the idle sequence whose cells and place are worth least."""
        return self._victims(idle, spared, self._neighbours.seconds(idle))[0][0]

    def _victims(
        self, idle: list[Sequence], spared: dict[int, float], placed: dict[int, float]
    ) -> list[tuple[Sequence, float]]:
        """Return idle sequences and what it costs to take them, the least first, equals by number."""
        losses = [
            (each, self._worth.lost(each, spared=spared.get(each.number, 0.0)) + placed.get(each.number, 0.0))
            for each in idle
        ]
        return sorted(losses, key=lambda loss: loss[1])

    def _of(
        self,
        mark: Mark,
        end: int,
        victims: list[tuple[Sequence, float]],
        spared: dict[int, float],
        placed: dict[int, float],
    ) -> Iterator[Way]:
        """Yield the ways to start with these cells: in their own sequence, and moved to another one."""
        costs, source, common, tokens = self._costs, *mark
        if isinstance(source, Sequence):
            if source.phase is Phase.IDLE:
                lost = self._worth.lost(source, common, spared.get(source.number, 0.0))
                lost += placed.get(source.number, 0.0)
                yield Way(lost + costs.compute(tokens, end), source, tokens, source)
                if source.cells - common < WORTH_TOKENS:
                    return
            elif source.phase in COMING and max(source.cells, source.awaited) <= common:
                tokens = common  # because it will stop there
            moved = min(self._cells.costs_of(source, max(source.cells, tokens)))
        else:
            read = 0.0 if isinstance(source, SavedPrefix) else costs.read(mark.cells)
            moved = read + costs.restore(mark.cells)
        other = next((victim for victim in victims if victim[0] is not source), None)
        if other is not None:
            yield Way(other[1] + moved + costs.compute(tokens, end), other[0], tokens, source)


def _order(way: Way) -> tuple[float, int, int]:
    source = way.source
    return way.seconds, *((-source.cells, source.order) if isinstance(source, Sequence) else (0, 0))
