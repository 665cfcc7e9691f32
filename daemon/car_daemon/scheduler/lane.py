"""The requests that wait for one model, ordered by user, process, tenant and label."""

from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple

from car_daemon.scheduler.account import TURN, Account, AccountTree, Kind, Path
from car_daemon.scheduler.lazy_heap import LazyHeap

# Requests, or accounts of a level, that one event looks at: as many as a model has sequences at most in practice, and
# as many places as a person can tell apart.
LOOKED_AT = 64


class Waiter(NamedTuple):
    """The kind of a request that waits, and the account of its label."""

    kind: Kind
    label: Account


class Lane(AccountTree):
    """Accounts and waiting requests of one model, or of all; each account that is looked at costs O(log n)."""

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
        """Let a request wait as one of another kind."""
        self._enqueue(key, self._dequeue(key), kind)

    def first(self, kind: Kind, account: Account | None = None) -> int:
        """Return the request of a kind, and of an account, that is served next; there is one."""
        account = account or self.root
        while account.children:
            account = _first(account, account.queues[kind])
        key = account.queues[kind].first()
        assert isinstance(key, int)
        return key

    def first_of(self, kinds: Iterable[Kind]) -> Kind | None:
        """Return the kind whose first request is served first; None if no request of the kinds waits."""
        first: Kind | None = None
        for kind in kinds:
            if kind in self.root.queues and (first is None or self._precedes(kind, first)):
                first = kind
        return first

    def order(self, kind: Kind) -> Iterator[int]:
        """Yield requests of a kind in the order of their leases, if each is charged a turn; of very many not all."""
        if kind in self.root.queues:
            yield from _order(self.root, kind)

    def lacking(self, kind: Kind) -> Iterator[Account]:
        """Yield for tenants with requests of a kind the label without a lease that goes first; 64 at most."""
        return islice(_lacking(self.root, kind), LOOKED_AT)

    def _precedes(self, kind: Kind, other: Kind) -> bool:
        """Return whether the first request of a kind goes before that of another kind."""
        if kind.rank != other.rank:
            return kind.rank < other.rank
        key, other_key = self.first(kind), self.first(other)
        accounts, others = (self.waiters[each].label.chain for each in (key, other_key))
        parting = next((pair for pair in zip(accounts, others, strict=True) if pair[0] is not pair[1]), None)
        return key < other_key if parting is None else parting[0].precedes(parting[1])

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


def _first(account: Account, queue: LazyHeap[tuple[float, int], Hashable]) -> Account:
    """Return which account below another is served next, by a queue that ranks these accounts by time.

    Of the accounts less than a turn behind the least time it is the account whose turn is longest ago.
    """
    near = _near(account, queue, LOOKED_AT)
    least = near[0].time
    return min((each for each in near if each.time < least + TURN), key=lambda each: each.turn)


def _near(account: Account, queue: LazyHeap[tuple[float, int], Hashable], most: int) -> list[Account]:
    """Return so many accounts below another, the least time first, by a queue that ranks them."""
    near = [account.children[name] for name in queue.smallest(most)]
    while sum(queue.set(each.name, each.rank) for each in near):
        near = [account.children[name] for name in queue.smallest(most)]
    return near


def _lacking(account: Account, kind: Kind) -> Iterator[Account]:
    """Yield the first label without a lease of each tenant below an account, of its children in turn."""
    queue = account.queues[kind]
    near = _near(account, queue, 1)
    if near[0].held or near[0].children:
        near = _near(account, queue, LOOKED_AT)
    if not near[0].children:
        yield from islice((label for label in near if not label.held), 1)
        return
    lines = [_lacking(each, kind) for each in near]
    while lines:
        line = lines.pop(0)
        if (label := next(line, None)) is not None:
            yield label
            lines.append(line)


def _order(account: Account, kind: Kind) -> Iterator[int]:
    members = account.queues[kind].smallest(LOOKED_AT)
    if not account.children:
        yield from (key for key in members if isinstance(key, int))
        return
    accounts = [account.children[name] for name in members]
    least = min(each.time for each in accounts)

    def rank(time: float, turn: int) -> tuple[float, int]:
        return (time - least) // TURN, turn

    line = [(rank(each.time, each.turn), each.time, TURN / each.weight, _order(each, kind)) for each in accounts]
    heapify(line)
    last = max(each.turn for each in accounts)
    while line:
        _, time, cost, keys = line[0]
        if (key := next(keys, None)) is None:
            heappop(line)
        else:
            yield key
            last += 1
            heapreplace(line, (rank(time + cost, last), time + cost, cost, keys))
