"""One queue of waiting requests, ordered by user, process, tenant and label."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from car_daemon.scheduler.fair_tree import Account, Branch, Forecast, Path

_SLACK = 8  # outdated keys that are never worth a rebuild


class LaneTarget(NamedTuple):
    """The engines that may run a request: of a model, on a device or on any, and the one that parked it or any."""

    model: str
    device: str | None
    engine: int | None


class Lane:
    """The waiting requests of one class and one target; every operation is O(log n) amortised."""

    def __init__(self, rank: int, target: LaneTarget, root: Account) -> None:
        self.rank = rank  # of its class: the lower, the more urgent
        self.target = target
        self.root = Branch(None, root, "")
        self.leaves: dict[int, Branch] = {}  # of the waiting requests, by key

    def __repr__(self) -> str:
        return f"<Lane {self.rank} {self.target}: {len(self.leaves)} waiting>"

    def __len__(self) -> int:
        return len(self.leaves)

    def add(self, key: int, path: Path, weight: float) -> None:
        """Add a request; `weight` is of its user."""
        user, process, tenant, label = path
        leaf = self.root.child(user, weight).child(process).child(tenant).child(label, leaf=True)
        heappush(leaf.keys, key)
        if len(leaf.keys) > 2 * leaf.waiting + _SLACK:
            leaf.keys = [each for each in set(leaf.keys) if each == key or self.leaves.get(each) is leaf]
            heapify(leaf.keys)
        self.leaves[key] = leaf
        branch, parent = leaf, leaf.parent
        while parent is not None:
            if not branch.waiting:
                branch.begin_to_wait()
            branch.waiting += 1
            branch, parent = parent, parent.parent
        branch.waiting += 1
        leaf.account.add_waiting()

    def first(self) -> int:
        """Return the key of the request that is served next; the lane is not empty."""
        return self.oldest(self.root.turns.first().turns.first().turns.first().turns.first())

    def take(self, key: int, *, in_turn: bool = True) -> Branch:
        """Remove a request that gets a lease and return its leaf, for `Branch.returned`.

        The clocks move on if it is its turn.
        """
        leaf = self._served(key) if in_turn else self.leaves.pop(key)
        branch: Branch | None = leaf
        while branch is not None:
            branch.begin_lease()
            branch = branch.parent
        leaf.account.remove_waiting()
        leaf.account.count_lease(1)
        return leaf

    def remove(self, key: int) -> None:
        """Remove a request that gets no lease here."""
        leaf = self.leaves.pop(key)
        branch: Branch | None = leaf
        while branch is not None:
            branch.waiting -= 1
            branch = branch.parent
        leaf.account.remove_waiting()
        leaf.leave()

    def oldest(self, leaf: Branch) -> int:
        """Return the key of the oldest request of a label, which waits."""
        while self.leaves.get(leaf.keys[0]) is not leaf:
            heappop(leaf.keys)
        return leaf.keys[0]

    def _served(self, key: int) -> Branch:
        """Move the clocks of all levels to a request's virtual times, and forget its place."""
        leaf = self.leaves.pop(key)
        branch, parent = leaf, leaf.parent
        while parent is not None:
            parent.serve(branch.account.served + branch.offset)
            if (time := branch.account.time) > parent.account.clock:
                parent.account.clock = time
            branch, parent = parent, parent.parent
        return leaf

    def order(self, cost: Callable[[int], float]) -> Iterator[int]:
        """Yield the keys in the order in which they are served if each costs what `cost` returns."""
        if self.leaves:
            yield from _order(self.root, self.leaves, cost)


def _order(branch: Branch, leaves: dict[int, Branch], cost: Callable[[int], float]) -> Iterator[int]:
    if branch.keys:
        yield from (key for key in _ascending(branch.keys) if leaves.get(key) is branch)
        return
    forecast = Forecast(branch.turns)
    below: dict[int, Iterator[int]] = {}
    while (child := forecast.first()) is not None:
        if child.number not in below:
            below[child.number] = _order(child, leaves, cost)
        key = next(below[child.number])
        yield key
        forecast.serve(cost(key) / child.account.weight)


def _ascending(heap: list[int]) -> Iterator[int]:
    """Yield the different numbers of a heap in order; a few of many cost little."""
    frontier, last = [(heap[0], 0)], None
    while frontier:
        key, index = heappop(frontier)
        for below in (2 * index + 1, 2 * index + 2):
            if below < len(heap):
                heappush(frontier, (heap[below], below))
        if key != last:
            yield key
        last = key
