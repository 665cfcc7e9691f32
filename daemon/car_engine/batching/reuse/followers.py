"""Requests that wait for the common part of a prompt, which another request computes now."""

from car_engine.batching.cells import CellMover
from car_engine.batching.reuse.index import Index
from car_engine.batching.sequences import Phase, Sequence

# Phases in which a leader will still compute more of its prompt.
COMING = (Phase.FOLLOW, Phase.ENCODE, Phase.PREFILL)


class Followers:
    """The sequences that follow a leader, and how each gets its cells."""

    def __init__(self, index: Index, cells: CellMover) -> None:
        self._index = index
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
            if leader.order == order and leader.cells < sequence.awaited and leader.phase in COMING:
                continue
            followers = sum(each is leader for each, _ in self._leaders.values())
            del self._leaders[number]
            self._cells.supply(sequence, followers)
