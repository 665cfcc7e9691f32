"""Accounts of service: users, their processes, tenants and labels, in a tree for each model and one over all models."""

from collections.abc import Hashable, Mapping
from itertools import count
from typing import NamedTuple

from car_daemon.scheduler.lazy_heap import LazyHeap


class LaneTarget(NamedTuple):
    """The engines that may run a request: of a model, on a device or on any, and the one that parked it or any."""

    model: str
    device: str | None
    engine: int | None


class Kind(NamedTuple):
    """Requests that are served alike: the rank of their class, the lower the more urgent, and their target."""

    rank: int
    target: LaneTarget


Name = Hashable
# A user, and below it names of its choice: its process, a tenant of the process and a label of the tenant.
Path = tuple[Hashable, ...]
# The answer tokens of a turn: a paragraph, so that a short answer ends within it. Of accounts less than a turn apart
# the account goes first whose last lease is longest ago: answers of about one length would else be ordered by the few
# tokens by which they differ.
TURN = 64
# Nobody begins to wait ahead of an account that waits and is further than this behind its equal part: a long answer.
LAG = 16 * TURN
_turns = count(1)


class Account:
    """One user, process, tenant or label in a tree; the root is above the users.

    `time` is its virtual time: tokens divided by the weight, from the clock of its level on, when it began to wait. The
    clock rises with the tokens of the accounts that it counts, divided by their weights in all. It counts the
    children that wait, and the children ahead of it: else it would be ahead of all that wait, by what others had and
    left with.

    Names that leave ahead of the clock hold it back from a sibling that is further ahead, so that fresh names overtake
    that sibling for ever. So a level also counts the equal part of each child with work, and the clock rises to the
    time of a child that waits `LAG` behind its part.
    """

    __slots__ = (
        "ahead",
        "behind",
        "children",
        "clock",
        "counted",
        "held",
        "leases",
        "name",
        "offset",
        "parent",
        "part",
        "queues",
        "time",
        "turn",
        "waiting",
        "weight",
        "weights",
        "working",
    )

    def __init__(self, parent: "Account | None", name: Name, weight: float = 1.0) -> None:
        self.parent = parent
        self.name = name
        self.weight = weight
        self.clock = 0.0  # of the level below
        self.time: float = 0.0 if parent is None else parent.clock
        self.turn = 0  # the number of its last lease, or of the begin of its wait
        self.waiting = 0  # requests
        self.leases = 0
        self.held = 0  # leases; a lease that is being parked counts for the request that it is parked for
        self.children: dict[Name, Account] = {}
        self.counted = False  # by the clock of its level
        self.weights = 0.0  # of the children that the clock counts
        self.ahead: LazyHeap[tuple[float, int], Name] | None = None  # by time, the children that wait for nothing
        self.working = 0.0  # the weights of the children with work
        self.part = 0.0  # the tokens that each of them had, had all had the same, divided by their weights
        self.offset = 0.0  # the level's part less its clock when the account's work began
        # The children that wait, by the level's part at which their time is their part: the furthest behind first.
        self.behind: LazyHeap[tuple[float, int], Name] | None = None
        # By kind, the names of the children that have requests waiting; of a label the keys of the requests.
        self.queues: dict[Kind, LazyHeap[tuple[float, int], Name]] = {}

    def __repr__(self) -> str:
        return f"<Account {self.name} at {self.time:.1f}: {self.waiting} waiting, {self.leases} leases>"

    @property
    def rank(self) -> tuple[float, int]:
        """Its time and its turn, which only rise."""
        return self.time, self.turn

    @property
    def chain(self) -> "list[Account]":
        """The accounts from the user's to this one."""
        account, chain = self, list[Account]()
        while account.parent is not None:
            chain.append(account)
            account = account.parent
        return chain[::-1]

    def precedes(self, sibling: "Account") -> bool:
        """Return whether it goes before a sibling."""
        if abs(self.time - sibling.time) < TURN:
            return self.turn < sibling.turn
        return self.time < sibling.time

    def hold(self, change: int) -> None:
        """Count a lease that is to come (1) or to go (-1), ahead of the lease itself."""
        account: Account | None = self
        while account is not None:
            account.held += change
            account = account.parent


def charge(tokens: float, *labels: Account) -> None:
    """Add tokens to the times of labels and of all accounts above them, and to the clocks of their levels."""
    for label in labels:
        account = label
        while (parent := account.parent) is not None:
            account.time += tokens / account.weight
            if account.waiting or account.leases:
                parent.part += tokens / parent.working
            if len(parent.children) == 1:
                parent.clock = max(parent.clock, account.time)
            elif account.counted:
                _advance(parent, tokens)
            elif account.time >= parent.clock:
                _count(account)
            _keep_up(parent)
            account = parent


def _keep_up(level: Account) -> None:
    """Let a clock rise to the time of the child that waits furthest behind its part, if that is too far."""
    behind = level.behind
    while behind is not None and (least := behind.least()) is not None and level.part - least[0] > LAG:
        account = level.children[behind.first()]
        if account.time + account.offset <= least[0]:
            level.clock = max(level.clock, account.time)
            return
        behind.set(account.name, (account.time + account.offset, account.turn))


def _count(account: Account) -> None:
    """Let the clock of its level count an account that waits, or that is ahead of the clock."""
    level = account.parent
    assert level is not None
    if not account.counted:
        account.counted = True
        level.weights += account.weight
    if level.ahead is None:
        level.ahead = LazyHeap()
    if account.waiting:
        level.ahead.discard(account.name)
    else:
        level.ahead.set(account.name, (account.time, account.turn))


def _advance(level: Account, tokens: float) -> None:
    """Add tokens to a clock, which counts the accounts no more that it passes and that wait for nothing."""
    ahead = level.ahead
    assert ahead is not None
    while (least := ahead.least()) is not None and least[0] < level.clock + tokens / level.weights:
        account = level.children[ahead.first()]
        if account.time > least[0]:
            _count(account)
        else:
            tokens -= max(0.0, account.time - level.clock) * level.weights
            level.clock = max(level.clock, account.time)
            _drop(account)
    if level.weights:
        level.clock += tokens / level.weights


def _drop(account: Account) -> None:
    """Let the clock of its level count an account no more, and forget one without work."""
    level = account.parent
    assert level is not None
    if account.counted and level.ahead is not None:
        account.counted = False
        level.ahead.discard(account.name)
        level.weights -= account.weight
    if not account.leases:
        del level.children[account.name]


class AccountTree:
    """The accounts that have work, or that are ahead of the clock of their level; `weights` are of the users."""

    def __init__(self, weights: Mapping[Name, float]) -> None:
        self.root = Account(None, "")
        self._weights = weights

    def __repr__(self) -> str:
        return f"<AccountTree {len(self.root.children)} users>"

    def begin(self, path: Path, *, lease: bool) -> Account:
        """Count a lease, or a request that waits; return the account of its label."""
        account = self.root
        account.leases += lease
        account.waiting += not lease
        for name in path:
            parent = account
            if (child := parent.children.get(name)) is None:
                weight = self._weights.get(name, 1.0) if parent is self.root else 1.0
                child = parent.children[name] = Account(parent, name, weight)
            account = child
            if not (account.waiting or account.leases):
                parent.working += account.weight
                account.offset = parent.part - parent.clock
            if lease or not account.waiting:
                account.turn = next(_turns)
            account.leases += lease
            account.held += lease
            account.waiting += not lease
            if account.waiting == 1 and not lease:
                account.time = max(account.time, parent.clock)
                _count(account)
                if parent.behind is None:
                    parent.behind = LazyHeap()
                parent.behind.set(name, (account.time + account.offset, account.turn))
        return account

    def end(self, label: Account, *, lease: bool, held: bool = True) -> None:
        """Count the end of a lease, `held` until now, or of a wait; forget accounts that the clock has passed."""
        root = self.root
        if root.waiting + root.leases == 1:
            self.root = Account(None, "")
            return
        account = label
        while (parent := account.parent) is not None:
            account.leases -= lease
            account.held -= lease and held
            account.waiting -= not lease
            if not (lease or account.waiting):
                _count(account)
                if parent.behind is not None:
                    parent.behind.discard(account.name)
            if not (account.waiting or account.leases):
                parent.working -= account.weight
                account.children.clear()
                account.ahead = account.behind = None
                account.weights = account.working = 0.0
                if account.time <= parent.clock:
                    _drop(account)
            account = parent
        root.leases -= lease
        root.waiting -= not lease

    def set_weights(self) -> None:
        """Divide the tokens of users by the weights as they are now."""
        users = self.root.children.values()
        for user in users:
            user.weight = self._weights.get(user.name, 1.0)
        self.root.weights = sum(user.weight for user in users if user.counted)
        self.root.working = sum(user.weight for user in users if user.waiting or user.leases)
