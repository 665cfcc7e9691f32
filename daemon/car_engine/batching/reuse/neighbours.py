"""The places of requests: llama.cpp decodes neighbours together, and others apart or with padding rows between them."""

from bisect import bisect
from itertools import accumulate, pairwise

from car_engine.batching.costs import StepCosts
from car_engine.batching.decode import MOST_PADDING
from car_engine.batching.sequences import Phase, Sequence, SequenceTable, mean_cells

# The weight of a new answer. A heuristic: the last three answers count as much as all before.
_WEIGHT = 0.2


class Neighbours:
    """Values the numbers of idle sequences by how much longer the decodes of an answer take there.

    `pads` is False when the model's memory cannot drop the cell of a padding row: all sequences are neighbours then.
    """

    def __init__(self, table: SequenceTable, costs: StepCosts, *, pads: bool) -> None:
        self._table = table
        self._costs = costs
        self._pads = pads
        self._answer: float | None = None  # tokens on average; None until one ended

    def __repr__(self) -> str:
        return f"<Neighbours, answers of {self._answer or 0:.0f} tokens>"

    def answered(self, tokens: int) -> None:
        """Learn from the length of an answer."""
        self._answer = tokens if self._answer is None else self._answer + _WEIGHT * (tokens - self._answer)

    def seconds(self, idle: list[Sequence]) -> dict[int, float]:
        """Return by number the seconds by which one answer more makes decodes longer; empty if all places are alike."""
        busy = [each for each in self._table.sequences if each.phase is not Phase.IDLE]
        if not (busy and self._pads and self._answer):
            return {}
        numbers = [each.number for each in busy]
        depth = mean_cells(busy) + round(self._answer / 2)  # in the middle of the answer
        gaps = [after - before - 1 for before, after in pairwise(numbers)]
        rows = len(numbers) + sum(gap for gap in gaps if gap <= MOST_PADDING)
        alone = self._costs.decode(1, depth)
        now = min(self._costs.decode(rows, depth), len(numbers) * alone)
        # By the number of rows that come with a place. More rows take no less, though some known seconds may say so.
        further = (self._costs.decode(rows + more, depth) - now for more in range(MOST_PADDING + 2))
        longer = [min(seconds, alone) for seconds in accumulate(further, max)]
        return {each.number: self._answer * longer[_further_rows(each.number, numbers)] for each in idle}


def _further_rows(number: int, busy: list[int]) -> int:
    """Return how many rows more a decode has with this number: none in a padded gap, most if it is far from all."""
    place = bisect(busy, number)
    before, after = busy[place - 1] if place else None, busy[place] if place < len(busy) else None
    if before is not None and after is not None and after - before - 1 <= MOST_PADDING:
        return 0
    return min(MOST_PADDING + 1, *(abs(number - each) for each in (before, after) if each is not None))
