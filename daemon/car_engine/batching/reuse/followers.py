"""Requests that wait for the common part of a prompt, which another request computes now."""

from car_engine.batching.cells import CellMover
from car_engine.batching.prefix import SavedPrefix
from car_engine.batching.reuse.index import Index
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.sequences import Phase, Sequence

# Phases in which a leader will still compute more of its prompt.
COMING = (Phase.FOLLOW, Phase.ENCODE, Phase.PREFILL)


class Followers:
    """The sequences that follow a leader, and how each gets its cells."""

    def __init__(self, index: Index, costs: MoveCosts, cells: CellMover) -> None:
        self._index = index
        self._costs = costs
        self._cells = cells
        self._leaders: dict[int, tuple[Sequence, int]] = {}  # By follower's number: the leader and its request's order.

    def __len__(self) -> int:
        return len(self._leaders)

    def follow(self, sequence: Sequence, leader: Sequence, tokens: int) -> None:
        """Let a sequence wait for tokens of a leader, which stops after them if it has to."""
        sequence.awaited = tokens
        if not self._index.memory.cuts_anywhere:
            leader.stop_at(tokens)
        self._leaders[sequence.number] = leader, leader.order

    def leave(self, sequence: Sequence) -> None:
        """Forget that a sequence follows, if it does."""
        self._leaders.pop(sequence.number, None)

    def supply(self, sequences: list[Sequence]) -> None:
        """Continue followers whose leader has computed the common tokens, or will not."""
        for number, (leader, order) in list(self._leaders.items()):
            sequence = sequences[number]
            computed = leader.cells if leader.order == order else 0
            if computed < sequence.awaited and leader.order == order and leader.phase in COMING:
                continue
            followers = sum(each is leader for each, _ in self._leaders.values())
            del self._leaders[number]
            assert sequence.prefix is not None
            self._supply(sequence, leader, sequence.prefix.whole(min(computed, sequence.awaited)), followers)

    def _supply(self, sequence: Sequence, leader: Sequence, tokens: int, followers: int) -> None:
        """Continue a follower with tokens of its leader in the way that costs least; it computes them if that is it."""
        assert sequence.prefix is not None
        marks = self._index.marks(sequence.prefix.cut(tokens)) if tokens else []
        saved = [mark.source for mark in marks if mark.tokens == tokens and isinstance(mark.source, SavedPrefix)]
        best = max((mark.tokens for mark in marks if mark.source is leader), default=0)
        if saved:
            self._cells.restore(saved[0], sequence, tokens)
        elif best and min(self._cells.costs_of(leader, leader.cells, followers)) < self._costs.compute(0, best):
            self._cells.bring(leader, sequence, best, followers)
        else:
            sequence.reuse(0)
