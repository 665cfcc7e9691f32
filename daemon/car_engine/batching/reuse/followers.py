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

    def follow(self, sequence: Sequence, leader: Sequence, tokens: int) -> None:
        """Let a sequence wait for tokens of a leader, which stops after them if it has to."""
        sequence.awaited, sequence.leader = tokens, (leader, leader.order)
        if not self._index.memory.cuts_anywhere:
            leader.stop_at(tokens)

    def supply(self, sequences: list[Sequence], leaving: Sequence | None = None) -> None:
        """Continue followers whose leader has computed the common tokens, or will not because it is `leaving` or gone.

        Then the follower that awaits most goes on in what there is, and leads the others.
        """
        waiting: list[tuple[Sequence, Sequence, int]] = []
        # A plain loop, because it runs every step and mostly finds none.
        for sequence in sequences:
            if sequence.leader is not None and sequence is not leaving:
                waiting.append((sequence, *sequence.leader))  # noqa: PERF401 - see above
        if not waiting:
            return
        heirs: dict[tuple[int, int], Sequence] = {}
        for sequence, leader, order in sorted(waiting, key=lambda each: -each[0].awaited):
            if leader.order != order or leader.cells < sequence.awaited:
                if leader.order == order and leader is not leaving and leader.phase in COMING:
                    continue
                heir = heirs.setdefault((leader.number, order), sequence)
                if heir is not sequence and heir.cells < sequence.awaited:
                    self.follow(sequence, heir, sequence.awaited)
                    continue
            self._cells.supply(sequence, sum(sequence.leader == each.leader for each, *_ in waiting))
