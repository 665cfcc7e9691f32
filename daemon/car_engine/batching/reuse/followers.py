"""Requests that wait for the common part of a prompt, which another request computes now."""

from car_engine.batching.cells import CellMover, Reach
from car_engine.batching.reuse.move_costs import MoveCosts
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import Phase, Sequence

# Phases in which a leader will still compute more of its prompt.
_COMING = (Phase.FOLLOW, Phase.ENCODE, Phase.PREFILL)


class Followers:
    """The sequences that follow a leader, and how each gets its cells."""

    def __init__(self, saved: SavedCells, costs: MoveCosts, reach: Reach, cells: CellMover) -> None:
        self._saved = saved
        self._costs = costs
        self._reach = reach
        self._cells = cells
        self._leaders: dict[int, tuple[Sequence, int]] = {}  # By follower's number: the leader and its request's order.

    def __len__(self) -> int:
        return len(self._leaders)

    def follow(self, sequence: Sequence, leader: Sequence) -> None:
        """Let a sequence wait for its awaited tokens of a leader."""
        self._leaders[sequence.number] = leader, leader.order

    def leave(self, sequence: Sequence) -> None:
        """Forget that a sequence follows, if it does."""
        self._leaders.pop(sequence.number, None)

    def supply(self, sequences: list[Sequence]) -> None:
        """Continue followers whose leader has computed the common tokens, or will not."""
        for number, (leader, order) in list(self._leaders.items()):
            sequence = sequences[number]
            computed = leader.cells if leader.order == order else 0
            if computed < sequence.awaited and leader.order == order and leader.phase in _COMING:
                continue
            followers = sum(each is leader for each, _ in self._leaders.values())
            del self._leaders[number]
            assert sequence.prefix is not None
            self._supply(sequence, leader, sequence.prefix.whole(min(computed, sequence.awaited)), followers)

    def _supply(self, sequence: Sequence, leader: Sequence, tokens: int, followers: int) -> None:
        """Continue a follower with tokens of its leader in the way that costs least; it computes them if that is it."""
        assert sequence.prefix is not None
        saved_tokens, saved = self._saved.longest(sequence.prefix.cut(tokens))
        if saved is not None and saved_tokens == tokens:
            self._cells.restore(saved, sequence, tokens)
            return
        costs, ways = self._costs, {"compute": self._costs.compute(0, tokens)}
        if tokens and self._reach.continues(leader, tokens):
            ways["copy"] = costs.copy()
            if self._reach.continues_saved(leader, tokens):
                sharers = followers if self._cells.fits(leader) else 1
                ways["save"] = costs.save(leader.cells) / sharers + costs.restore(leader.cells)
        match min(ways, key=lambda way: ways[way]):
            case "copy":
                self._cells.copy(leader, sequence, tokens)
            case "save":
                self._cells.restore(self._cells.save(leader), sequence, tokens)
            case _:
                sequence.reuse(0)
