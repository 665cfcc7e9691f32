"""The tree of users, processes, tenants and labels: accounts of their service, and each queue's branches.

An account is charged once for all queues that it waits in. A branch has the account's virtual time in one queue, and
the children or requests that wait below it. Start-time fair queueing at each level (docs/decisions/0023): the child
with the least virtual time is served, and of equal ones the one whose turn is longest ago (`turns.py`); the clock of
the level is the greatest virtual time of a child that was served; a child that begins to wait starts at the greater of
its own last virtual time and the clock.
"""

from heapq import heappop, heappush
from itertools import count

from car_daemon.scheduler.fair_queue.turns import Turns

Name = int | str
# A user, its process, a tenant of the process and a label of the tenant.
Path = tuple[int, int, str, int | str]
# Idle children remembered at one level; beyond it the clock moves on to the least of them.
MOST_IDLE = 1024
_numbers = count()


class Account:
    """One user, process of a user, tenant of a process, or label of a tenant; the root is above the users.

    `served` is the service divided by the weight. It falls only while nothing of the account waits, because a queue
    finds an account whose figure rose, and not one whose figure fell.
    """

    __slots__ = (
        "branches",
        "children",
        "clock",
        "credit",
        "leases",
        "name",
        "offset",
        "parent",
        "refs",
        "served",
        "several",
        "waiting",
        "weight",
    )

    def __init__(self, parent: "Account | None", name: Name, weight: float = 1.0, *, leaf: bool = False) -> None:
        self.parent = parent
        self.name = name
        self.weight = weight
        self.served = 0.0  # tokens divided by the weight
        self.credit = 0.0  # refunds to subtract from the next charge, divided by the weight
        self.clock: float = 0.0  # the virtual time of its level over all queues: of the child that was served last
        self.offset: float = 0.0 if parent is None else parent.clock  # from `served` to the time over all queues
        self.waiting = 0  # requests in queues
        self.leases = 0  # requests with a lease, and those for which a running one is being parked
        self.several = 0  # children with two or more leases
        self.refs = 0  # branches of queues, and requests that were charged to it and did not end
        self.branches: list[Branch] = []
        self.children: dict[Name, Account] = _NO_ACCOUNTS if leaf else {}

    def __repr__(self) -> str:
        return f"<Account {self.name}: {self.served:.1f} served, {self.waiting} waiting, {self.leases} leases>"

    @property
    def time(self) -> float:
        """The virtual time over all queues; an account that waits for a slow queue saves up nothing in the others."""
        assert self.parent is not None
        return max(self.served + self.offset, self.parent.clock)

    def child(self, name: Name, weight: float = 1.0, *, leaf: bool = False) -> "Account":
        """Return the child of a name, which is made where there is none."""
        child = self.children.get(name)
        if child is None:
            child = self.children[name] = Account(self, name, weight, leaf=leaf)
        return child

    def charge(self, tokens: float) -> None:
        """Add tokens to the service of the account and of all above it."""
        account = self
        while account.parent is not None:
            amount = tokens / account.weight
            if account.credit:
                used = min(account.credit, amount)
                account.credit -= used
                amount -= used
            account.served += amount
            account = account.parent

    def refund(self, tokens: float, most: float) -> None:
        """Subtract tokens; where requests wait, from the next charges, up to `most` for each lease and two more.

        The rest takes the virtual time back, to the clock at least: where that has passed the charge, all of it as
        smaller charges would be turns ahead of siblings that came meanwhile.
        """
        account = self
        while (parent := account.parent) is not None:
            amount = tokens / account.weight
            if account.waiting:
                kept = min(amount, max(0.0, most * (account.leases + 2) / account.weight - account.credit))
                account.credit += kept
                amount -= kept
            before = account.served + account.offset
            account.served -= amount
            if account.waiting and amount:
                account.offset += _fallen(before, amount, parent.clock) - before + amount
                for branch in account.branches:
                    branch.fell(amount)
            account = parent

    def add_waiting(self) -> None:
        """Count a request that waits."""
        account = self
        while account.parent is not None:
            parent = account.parent
            if not account.waiting:
                account.offset = max(account.offset, parent.clock - account.served)
            account.waiting += 1
            account = parent

    def serve(self) -> None:
        """Move the clock of each level to the virtual time of the account that is served now."""
        account = self
        while (parent := account.parent) is not None:
            parent.clock = account.time
            account = parent

    def remove_waiting(self) -> None:
        """Count a request that waits no more."""
        account = self
        while account.parent is not None:
            account.waiting -= 1
            if not account.waiting:
                account.served -= account.credit
                account.credit = 0.0
            account = account.parent

    def count_lease(self, change: int) -> None:
        """Count a lease that begins (1) or ended (-1)."""
        account = self
        while account.parent is not None:
            parent = account.parent
            had_several = account.leases > 1
            account.leases += change
            parent.several += (account.leases > 1) - had_several
            account = parent

    def hold(self, former: "Account | None") -> "Account":
        """Keep the account and all above it, for a request that was charged to a `former` one; return the account."""
        account: Account | None = self
        while account is not None:
            account.refs += 1
            account = account.parent
        if former is not None:
            former.let_go()
        return self

    def let_go(self) -> None:
        """End a `hold`."""
        account: Account | None = self
        while account is not None:
            parent = account.parent
            account.refs -= 1
            if not account.refs and parent is not None:
                del parent.children[account.name]
            account = parent

    def release(self, branch: "Branch") -> None:
        """Give up a branch and its reference; an account without any is forgotten."""
        self.branches.remove(branch)
        self.refs -= 1
        if not self.refs and self.parent is not None:
            del self.parent.children[self.name]


class Branch:
    """An account in one queue: a leaf has the keys of requests, the others have children."""

    __slots__ = (
        "account",
        "children",
        "clock",
        "entry",
        "idle",
        "keys",
        "leases",
        "name",
        "number",
        "offset",
        "parent",
        "retired_at",
        "turn",
        "turns",
        "waiting",
    )

    def __init__(self, parent: "Branch | None", account: Account, name: Name, *, leaf: bool = False) -> None:
        self.parent = parent
        self.account = account
        self.name = name
        self.number = next(_numbers)
        self.children: dict[Name, Branch] = _NO_CHILDREN if leaf else {}
        self.turns: Turns[Branch] = _NO_TURNS  # children with waiting requests
        self.keys: list[int] = [] if leaf else _NO_KEYS  # a leaf's requests, a heap; some have left
        self.idle: list[tuple[float, int, Branch]] = (
            _NO_ENTRIES if leaf else []
        )  # children without work, by their last virtual time; a heap
        self.clock = 0.0  # of this level
        self.offset = 0.0 if parent is None else parent.clock - account.served  # from the service to the virtual time
        self.entry: float | None = None  # of the parent's turns, like `turn`
        self.turn = 0
        self.retired_at: float | None = None  # its virtual time while it has no work
        self.waiting = 0  # requests below it
        self.leases = 0  # requests that got their leases from this queue and run
        account.refs += 1
        account.branches.append(self)

    def __repr__(self) -> str:
        return f"<Branch {self.name} at {self.time:.1f}: {self.waiting} waiting, {self.leases} leases>"

    @property
    def time(self) -> float:
        """The virtual time in this queue."""
        return self.account.served + self.offset

    def child(self, name: Name, weight: float = 1.0, *, leaf: bool = False) -> "Branch":
        """Return the child of a name, which is made where there is none."""
        child = self.children.get(name)
        if child is None:
            child = self.children[name] = Branch(self, self.account.child(name, weight, leaf=leaf), name, leaf=leaf)
        return child

    def begin_to_wait(self) -> None:
        """Enter the parent's turns at the greater of the own last virtual time and the level's clock."""
        parent, served = self.parent, self.account.served
        assert parent is not None
        own = served + self.offset if self.retired_at is None else self.retired_at
        start = own if own > parent.clock else parent.clock
        self.offset = start - served
        self.retired_at = None
        if parent.turns is _NO_TURNS:
            parent.turns = Turns()
        parent.turns.begin(self, start, alone=not parent.waiting)

    def fell(self, amount: float) -> None:
        """Follow the service of the account, which fell; the virtual time stays at the level's clock at least."""
        parent = self.parent
        if parent is None or not self.waiting:
            return
        start = _fallen(self.time + amount, amount, parent.clock)
        self.offset = start - self.account.served
        parent.turns.fell(self, start)

    def begin_lease(self) -> None:
        """Count a request that waits no more, because it got a lease."""
        self.waiting -= 1
        self.leases += 1
        if self.parent is not None and self.waiting:
            self.parent.turns.served(self)

    def lease(self, path: Path, weight: float) -> "Branch":
        """Count the lease of a request where nothing waits, as if it had waited; return its leaf, for `returned`.

        The clocks of all levels move on to its virtual times; `weight` is of its user.
        """
        user, process, tenant, label = path
        leaf = branch = self.child(user, weight).child(process).child(tenant).child(label, leaf=True)
        while (parent := branch.parent) is not None:
            account, level = branch.account, branch.account.parent
            assert level is not None
            own = branch.retired_at if branch.retired_at is not None else account.served + branch.offset
            start = max(own, parent.clock)
            branch.offset = start - account.served
            branch.retired_at = None
            if start > parent.clock:
                parent.serve(start)
            if not account.waiting:
                account.offset = max(account.offset, level.clock - account.served)
            level.clock = max(level.clock, account.served + account.offset)
            branch.leases += 1
            branch = parent
        branch.leases += 1
        leaf.account.count_lease(1)
        return leaf

    def returned(self, *, counted: bool = True) -> "Branch":
        """Count the end of a leaf's lease, `counted` by its accounts until now; return the root of its queue."""
        if counted:
            self.account.count_lease(-1)
        branch = self
        while branch.parent is not None:
            branch.leases -= 1
            branch = branch.parent
        branch.leases -= 1
        self.leave()
        return branch

    def leave(self) -> None:
        """Retire a leaf, and the branches above it, as far as they have no work."""
        branch, parent = self, self.parent
        while parent is not None and not (branch.waiting or branch.leases):
            parent.retire(branch)
            branch, parent = parent, parent.parent

    def serve(self, time: float) -> None:
        """Move the clock of the level on to the virtual time of a child that is served now."""
        if time > self.clock:
            self.clock = time
            while self.idle and self.idle[0][0] <= time:
                self._forget(heappop(self.idle))

    def retire(self, child: "Branch") -> None:
        """Keep the last virtual time of a child that has no work, until the clock passes it."""
        if not (self.waiting or self.leases):  # the clock passes them all
            for each in self.children.values():
                each.account.release(each)
            self.children.clear()
            self.turns = _NO_TURNS
            self.idle.clear()
            return
        child.retired_at = child.time
        if child.retired_at <= self.clock:
            self._forget((child.retired_at, child.number, child))
            return
        heappush(self.idle, (child.retired_at, child.number, child))
        while len(self.idle) > MOST_IDLE:
            entry = heappop(self.idle)
            if self._forget(entry):
                self.clock = max(self.clock, entry[0])

    def _forget(self, entry: "tuple[float, int, Branch]") -> bool:
        """Forget an idle child; return False if it has work again or is gone."""
        time, _, child = entry
        idle = child.retired_at == time and self.children.get(child.name) is child
        if idle:
            del self.children[child.name]
            child.account.release(child)
        return idle


def _fallen(time: float, amount: float, clock: float) -> float:
    """Return a virtual time that falls by an amount, but not below the clock where it was not below it before."""
    return max(time - amount, min(time, clock))


# Shared by all accounts and branches that never have any, because very many labels may wait.
_NO_ACCOUNTS: dict[Name, Account] = {}
_NO_CHILDREN: dict[Name, Branch] = {}
_NO_ENTRIES: list[tuple[float, int, Branch]] = []
_NO_TURNS: Turns[Branch] = Turns()
_NO_KEYS: list[int] = []
