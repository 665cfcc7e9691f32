"""The waiting children of a branch, in the order in which they are served: by virtual time, then by turn."""

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, Protocol, TypeVar

# Answer tokens charged at the lease, so that one client does not get all leases that are free at once. Virtual times
# that differ by less count as equal: after a lease a child of weight 1 is not equal to one that waits for its first.
ADVANCE = 64
# Children of equal time between which the turn decides: with more, one event could move very many.
_MOST_ALIKE = 64
# Outdated entries that are never worth a rebuild.
_MOST_OUTDATED = 64
_numbers = count(1)


class Child(Protocol):
    """A branch below another one; `entry` and `turn` are for `Turns` alone."""

    number: int  # of equal virtual times in the heap the least goes first
    waiting: int  # requests below it
    entry: float | None  # the virtual time of its live entry in the heap
    turn: int  # of the begin of its wait, or of its last lease: the least is longest ago

    @property
    def time(self) -> float:
        """The virtual time; where it falls while the child waits, `fell` is called."""
        ...


C = TypeVar("C", bound=Child)


class Turns(Generic[C]):
    """Of the children with the least virtual time and equal ones, the one goes first whose turn is longest ago.

    Entries of `heap` hold a virtual time that is at most the child's: it rises with every charge, and the entry follows
    when it reaches the top. Children of equal times move on to `alike`, and back once they were charged.
    """

    __slots__ = ("alike", "heap", "least", "outdated")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, C]] = []
        self.alike: list[tuple[int, C]] = []  # a heap
        self.least = 0.0  # virtual time from which on children are equal
        self.outdated = 0  # entries of the heap that a lower one replaced, at most

    def __repr__(self) -> str:
        return f"<Turns from {self.least:.1f} on: {len(self.alike)} alike, {len(self.heap)} others>"

    def begin(self, child: C, time: float, *, alone: bool) -> None:
        """Add a child that begins to wait; `alone` if no other one waits."""
        child.turn = next(_numbers)
        if alone or time < self.least:
            self.least = time
        if child.entry is None or time < child.entry:
            self._enter(child, time)

    def fell(self, child: C, time: float) -> None:
        """Follow the virtual time of a child that waits, which fell to this."""
        self.least = min(self.least, time)
        if child.entry is None or time >= child.entry:
            return
        self._enter(child, time)
        self.outdated += 1
        if self.outdated > _MOST_OUTDATED:
            live = {each[2].number: each for each in self.heap if each[0] == each[2].entry}
            self.heap, self.outdated = list(live.values()), 0
            heapify(self.heap)

    def served(self, child: C) -> None:
        """Put a child that had a lease, and still waits, behind all others of equal time."""
        child.turn = next(_numbers)
        if child.entry is None:
            self._enter(child, child.time)

    def first(self) -> C:
        """Return the child that is served next; there is one."""
        while True:
            first, nearest = self._first_alike(), self._nearest()
            if nearest is None or (first is not None and not _equal(nearest.time, self.least, len(self.alike))):
                assert first is not None
                return first
            if first is None:
                self.least = nearest.time
            heappop(self.heap)
            nearest.entry = None
            heappush(self.alike, (nearest.turn, nearest))

    def _first_alike(self) -> C | None:
        """Return the child of the earliest turn; what left, or was charged too much, leaves the top."""
        while self.alike:
            turn, child = self.alike[0]
            live = turn == child.turn and child.waiting
            if live and child.time - self.least < ADVANCE:
                return child
            heappop(self.alike)
            if live:
                self._enter(child, child.time)
        return None

    def _nearest(self) -> C | None:
        """Return the child of the least virtual time in the heap."""
        heap = self.heap
        while heap:
            time, number, child = heap[0]
            if time != child.entry:
                heappop(heap)
            elif not child.waiting:
                heappop(heap)
                child.entry = None
            elif (now := child.time) > time:
                child.entry = now
                heapreplace(heap, (now, number, child))
            else:
                return child
        return None

    def _enter(self, child: C, time: float) -> None:
        child.entry = time
        heappush(self.heap, (time, child.number, child))


class Forecast(Generic[C]):
    """The order in which children are served if nothing changes but their virtual times; it leaves `Turns` as they are.

    Nodes of the heap's tree are opened in order, so a few children of many cost little.
    """

    def __init__(self, turns: Turns[C]) -> None:
        self._heap = turns.heap
        self._least = turns.least
        self._left: dict[int, int] = {}  # requests of children that were served, by number
        # By virtual time: nodes of the heap by index, whose children are not known yet, and children by turn.
        self._others: list[tuple[float, int, int, C | None]] = []
        self._found: set[int] = set()  # numbers: an outdated entry may have become right again
        self._open(0)
        self._alike: list[tuple[int, float, C | None]] = [
            (turn, child.time, child if turn == child.turn and child.waiting else None) for turn, child in turns.alike
        ]

    def __repr__(self) -> str:
        return f"<Forecast from {self._least:.1f} on: {len(self._alike)} alike>"

    def first(self) -> C | None:
        """Return the child that is served next."""
        while True:
            first, nearest = self._first_alike(), self._nearest()
            if nearest is None or (first is not None and not _equal(nearest, self._least, len(self._alike))):
                return first
            if first is None:
                self._least = nearest
            time, _, turn, child = heappop(self._others)
            heappush(self._alike, (turn, time, child))

    def serve(self, tokens: float) -> None:
        """Serve a request of the first child for so many tokens, divided by its weight."""
        _, time, child = heappop(self._alike)
        assert child is not None
        left = self._left[child.number] = self._left.get(child.number, child.waiting) - 1
        if left:
            heappush(self._others, (time + tokens, child.number, next(_numbers), child))

    def _first_alike(self) -> C | None:
        while self._alike:
            turn, time, child = self._alike[0]
            if child is not None and time - self._least < ADVANCE:
                return child
            heappop(self._alike)
            if child is not None:
                heappush(self._others, (time, child.number, turn, child))
        return None

    def _nearest(self) -> float | None:
        """Return the least virtual time of the others, once the nodes before it are open."""
        while self._others:
            time, _, index, child = self._others[0]
            if child is not None:
                return time
            heappop(self._others)
            entry, number, found = self._heap[index]
            self._open(2 * index + 1)
            self._open(2 * index + 2)
            if found.waiting and entry == found.entry and found.number not in self._found:
                self._found.add(found.number)
                heappush(self._others, (found.time, number, found.turn, found))
        return None

    def _open(self, index: int) -> None:
        if index < len(self._heap):
            heappush(self._others, (self._heap[index][0], -1, index, None))


def _equal(time: float, least: float, alike: int) -> bool:
    """Return whether a virtual time counts as equal to the least one, and `alike` children leave room for its child."""
    return time - least < ADVANCE and alike < _MOST_ALIKE
