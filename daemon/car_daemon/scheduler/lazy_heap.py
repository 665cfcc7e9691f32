"""A heap whose members change their ranks and leave: outdated entries are dropped when they reach the top."""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

# Ranks are numbers or tuples that compare, and so are members that may have equal ranks.
R = TypeVar("R")
M = TypeVar("M")


class LazyHeap(Generic[R, M]):
    """Members in the order of their ranks, the least first; every operation is O(log n) amortised."""

    def __init__(self) -> None:
        self._ranks: dict[M, R] = {}
        self._heap: list[tuple[R, M]] = []  # every member's entry, and outdated entries

    def __repr__(self) -> str:
        return f"<LazyHeap {len(self._ranks)} of {len(self._heap)} entries>"

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, member: M) -> bool:
        return member in self._ranks

    def set(self, member: M, rank: R) -> bool:
        """Add a member, or change its rank; return whether either was to be done."""
        if self._ranks.get(member) == rank:
            return False
        self._ranks[member] = rank
        heappush(self._heap, (rank, member))
        if len(self._heap) > 2 * len(self._ranks) + 2:
            self._heap = [(rank, member) for member, rank in self._ranks.items()]
            heapify(self._heap)
        return True

    def discard(self, member: M) -> None:
        """Remove a member; an unknown one is ignored."""
        self._ranks.pop(member, None)
        if not self._ranks:
            self._heap.clear()

    def first(self) -> M | None:
        """Return the member of the least rank; None if there is none."""
        entry = self._top()
        return None if entry is None else entry[1]

    def least(self) -> R | None:
        """Return the least rank; None if there is no member."""
        entry = self._top()
        return None if entry is None else entry[0]

    def pop(self) -> M | None:
        """Remove and return the member of the least rank; None if there is none."""
        member = self.first()
        if member is not None:
            del self._ranks[member]
            heappop(self._heap)
        return member

    def smallest(self, most: int) -> list[M]:
        """Return so many members, the least rank first."""
        if len(self._ranks) <= most:
            return [member for _, member in sorted((rank, member) for member, rank in self._ranks.items())]
        entries = list[tuple[R, M]]()
        while len(entries) < most and (entry := self._top()) is not None:
            entries.append(heappop(self._heap))
        for entry in entries:
            heappush(self._heap, entry)
        return list(dict.fromkeys(member for _, member in entries))

    def _top(self) -> tuple[R, M] | None:
        heap = self._heap
        while heap and self._ranks.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None
