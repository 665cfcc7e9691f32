"""The tree of users, processes, tenants and labels: accounts of their service, and each queue's branches and turns.

An account is charged once for all queues that it waits in. A branch has the account's virtual time in one queue, and
the children or requests that wait below it. Start-time fair queueing at each level (docs/decisions/0023): the child
with the least virtual time is served, and of equal children the child whose turn is longest ago; the clock of the level
is the greatest virtual time of a child that was served; a child that begins to wait starts at the greater of its own
last virtual time and the clock.
"""

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

Name = int | str
# A user, its process, a tenant of the process and a label of the tenant.
Path = tuple[int, int, str, int | str]
# Idle children remembered at one level; beyond it the clock moves on to the least of them.
MOST_IDLE = 1024
_branch_numbers = count()
# Answer tokens charged at the lease, so that one client does not get all leases that are free at once. Virtual times
# that differ by less count as equal: after a lease a child of weight 1 is not equal to one that waits for its first.
ADVANCE = 64
# Children of equal time between which the turn decides: with more, one event could move very many.
_MOST_ALIKE = 64
# Outdated entries that are never worth a rebuild.
_MOST_OUTDATED = 64
_turn_numbers = count(1)


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
        """Return the child of a name; make it if there is none."""
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
        """Subtract tokens; if requests wait, from the next charges, up to `most` for each lease and two more.

        The rest takes the virtual time back, but not behind the clock: the account would else get turns ahead of
        siblings that came after the charge.
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
            account.leases += change
            account = account.parent

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
        self.number = next(_branch_numbers)
        self.children: dict[Name, Branch] = _NO_CHILDREN if leaf else {}
        self.turns: BranchTurns = _NO_TURNS  # children with waiting requests
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
    def root(self) -> "Branch":
        """The branch above all others of its queue."""
        branch = self
        while branch.parent is not None:
            branch = branch.parent
        return branch

    @property
    def time(self) -> float:
        """The virtual time in this queue."""
        return self.account.served + self.offset

    def child(self, name: Name, weight: float = 1.0, *, leaf: bool = False) -> "Branch":
        """Return the child of a name; make it if there is none."""
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
            parent.turns = BranchTurns()
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
        """Count the lease of a request if nothing waits, as if it had waited; return its leaf, for `returned`.

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
    """Return a virtual time that falls by an amount, but not below the clock unless it was below it before."""
    return max(time - amount, min(time, clock))


class BranchTurns:
    """Of the children with about the least virtual time, the child goes first whose turn is longest ago.

    Entries of `heap` hold a virtual time that is at most the child's: it rises with every charge, and the entry follows
    when it reaches the top. Children of equal times move on to `alike`, and back once they were charged.
    """

    __slots__ = ("alike", "heap", "least", "outdated")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Branch]] = []
        self.alike: list[tuple[int, Branch]] = []  # a heap
        self.least = 0.0  # virtual time from which on children are equal
        self.outdated = 0  # entries of the heap that a lower one replaced, at most

    def __repr__(self) -> str:
        return f"<BranchTurns from {self.least:.1f} on: {len(self.alike)} alike, {len(self.heap)} others>"

    def begin(self, child: Branch, time: float, *, alone: bool) -> None:
        """Add a child that begins to wait; `alone` if no other one waits."""
        child.turn = next(_turn_numbers)
        if alone or time < self.least:
            self.least = time
        if child.entry is None or time < child.entry:
            self._enter(child, time)

    def fell(self, child: Branch, time: float) -> None:
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

    def served(self, child: Branch) -> None:
        """Put a child that had a lease, and still waits, behind all others of equal time."""
        child.turn = next(_turn_numbers)
        if child.entry is None:
            self._enter(child, child.time)

    def first(self) -> Branch:
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

    def _first_alike(self) -> Branch | None:
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

    def _nearest(self) -> Branch | None:
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

    def _enter(self, child: Branch, time: float) -> None:
        child.entry = time
        heappush(self.heap, (time, child.number, child))


class Forecast:
    """The order in which children are served if nothing changes but their virtual times; it leaves `BranchTurns`
    unchanged.

    Nodes of the heap's tree are opened in order, so a few children of many cost little.
    """

    def __init__(self, turns: BranchTurns) -> None:
        self._heap = turns.heap
        self._least = turns.least
        self._left: dict[int, int] = {}  # requests of children that were served, by number
        # By virtual time: nodes of the heap by index, whose children are not known yet, and children by turn.
        self._others: list[tuple[float, int, int, Branch | None]] = []
        self._found: set[int] = set()  # numbers: an outdated entry may have become right again
        self._open(0)
        self._alike: list[tuple[int, float, Branch | None]] = [
            (turn, child.time, child if turn == child.turn and child.waiting else None) for turn, child in turns.alike
        ]

    def __repr__(self) -> str:
        return f"<Forecast from {self._least:.1f} on: {len(self._alike)} alike>"

    def first(self) -> Branch | None:
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
            heappush(self._others, (time + tokens, child.number, next(_turn_numbers), child))

    def _first_alike(self) -> Branch | None:
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


# Shared by all accounts and branches that never have any, because very many labels may wait.
_NO_ACCOUNTS: dict[Name, Account] = {}
_NO_CHILDREN: dict[Name, Branch] = {}
_NO_ENTRIES: list[tuple[float, int, Branch]] = []
_NO_TURNS: BranchTurns = BranchTurns()
_NO_KEYS: list[int] = []
