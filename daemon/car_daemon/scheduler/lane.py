"""The requests that wait for one model, ordered by user, process, tenant and label."""

from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from car_daemon.scheduler.account import TURN, Account, AccountTree, Kind, Path, rank_at
from car_daemon.scheduler.lazy_heap import LazyHeap

# Requests, or accounts of a level, that one event looks at: as many as a model has sequences at most in practice, and
# as many places as a person can tell apart.
LOOKED_AT = 64


class Waiter(NamedTuple):
    """The kind of a request that waits, and the account of its label."""

    kind: Kind
    label: Account


class Lane(AccountTree):
    """Accounts and waiting requests of one model, or of all; every operation is O(log n) amortised."""

    def __init__(self, weights: dict[Hashable, float]) -> None:
        super().__init__(weights)
        self.waiters: dict[int, Waiter] = {}  # by key

    def __repr__(self) -> str:
        return f"<Lane {len(self.waiters)} waiting>"

    def add(self, key: int, path: Path, kind: Kind) -> Account:
        """Add a request; return the account of its label."""
        label = self.begin(path, lease=False)
        self._enqueue(key, label, kind)
        return label

    def remove(self, key: int) -> None:
        """Remove a request; a lease that it gets is counted before."""
        label = self._dequeue(key)
        self.end(label, lease=False)

    def change(self, key: int, kind: Kind) -> None:
        """Let a request wait among those of another kind."""
        self._enqueue(key, self._dequeue(key), kind)

    def first(self, kind: Kind, account: Account | None = None) -> int:
        """Return the request of a kind, and of an account, that is served next; there is one."""
        account = account or self.root
        while True:
            queue = account.queues[kind]
            member = queue.first()
            child = account.children.get(member)
            if child is None:
                assert isinstance(member, int)
                return member
            if (rank := child.rank) == queue.least():
                account = child
            else:
                queue.set(member, rank)

    def first_of(self, kinds: Iterable[Kind]) -> Kind | None:
        """Return the kind whose first request is served first; None if no request of the kinds waits."""
        waiting = [kind for kind in kinds if kind in self.root.queues]
        return min(waiting, key=self._place) if len(waiting) > 1 else next(iter(waiting), None)

    def order(self, kind: Kind) -> Iterator[int]:
        """Yield requests of a kind in the order of their leases, if each is charged a turn; of very many not all."""
        if kind in self.root.queues:
            yield from _order(self.root, kind)

    def _place(self, kind: Kind) -> tuple[float, ...]:
        key = self.first(kind)
        return (kind.rank, *(part for each in self.waiters[key].label.chain for part in each.rank), key)

    def _enqueue(self, key: int, label: Account, kind: Kind) -> None:
        self.waiters[key] = Waiter(kind, label)
        member: Hashable = key
        rank: tuple[float, int] = (key, 0)
        account: Account | None = label
        while account is not None:
            queue = account.queues.get(kind)
            others = queue is not None
            if queue is None:
                queue = account.queues[kind] = LazyHeap()
            queue.set(member, rank)
            if others:
                return
            member, rank, account = account.name, account.rank, account.parent

    def _dequeue(self, key: int) -> Account:
        kind, label = self.waiters.pop(key)
        member: Hashable = key
        account: Account | None = label
        while account is not None:
            queue = account.queues[kind]
            queue.discard(member)
            if queue:
                break
            del account.queues[kind]
            member, account = account.name, account.parent
        return label


def _order(account: Account, kind: Kind) -> Iterator[int]:
    members = account.queues[kind].smallest(LOOKED_AT)
    if not account.children:
        yield from (key for key in members if isinstance(key, int))
        return
    line = [
        (each.rank, each.time, TURN / each.weight, _order(each, kind))
        for each in (account.children[name] for name in members)
    ]
    heapify(line)
    last = max(turn for (_, turn), *_ in line)
    while line:
        _, time, cost, keys = line[0]
        if (key := next(keys, None)) is None:
            heappop(line)
        else:
            yield key
            last += 1
            heapreplace(line, (rank_at(time + cost, last), time + cost, cost, keys))
