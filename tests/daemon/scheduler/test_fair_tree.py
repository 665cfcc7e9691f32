"""A lease where nothing waits, beside the same lease by way of the queue."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.scheduler.fair_tree import ADVANCE, Account, Branch, Path
from car_daemon.scheduler.lane import Lane, LaneTarget

PATHS: list[Path] = [
    (user, process, tenant, label)
    for user in (1, 2)
    for process in (1, 2)
    for tenant in ("", "key")
    for label in ("a", "b")
]
Lease = Callable[[Lane, Path], Branch]


def at_once(lane: Lane, path: Path) -> Branch:
    """Lease without a wait."""
    return lane.root.lease(path, 1.0)


def by_the_queue(lane: Lane, path: Path) -> Branch:
    """Lease to the only request that waits."""
    lane.add(1, path, 1.0)
    assert lane.first() == 1
    return lane.take(1)


class Replay:
    """A queue and its accounts, and what is done to them."""

    def __init__(self, lease: Lease) -> None:
        self.root = Account(None, "")
        self.lane = Lane(0, LaneTarget("m", None, None), self.root)
        self.lease = lease
        self.leaves: list[Branch] = []

    def do(self, path: Path, tokens: int, ends: int | None) -> None:
        """Lease to a path, charge it, and let one of the leases end."""
        leaf = self.lease(self.lane, path)
        leaf.account.hold(None)
        leaf.account.charge(tokens)
        self.leaves.append(leaf)
        if ends is not None and ends < len(self.leaves):
            ended = self.leaves.pop(ends)
            ended.returned()
            ended.account.refund(tokens / 2, 64)
            ended.account.let_go()

    def state(self) -> tuple[object, object, list[int]]:
        """Return what the accounts and branches hold, and the order in which new requests would be served."""
        for key, path in enumerate(PATHS):
            self.lane.add(key, path, 1.0)
        before = _accounts(self.root), _branches(self.lane.root)
        order = []
        while len(self.lane):
            order.append(self.lane.first())
            self.lane.take(order[-1])
        return *before, order


def _accounts(account: Account) -> object:
    children = {name: _accounts(child) for name, child in account.children.items()}
    facts = account.served, account.clock, account.offset, account.waiting, account.leases
    return (*facts, account.refs, children)


def _branches(branch: Branch) -> object:
    children = {name: _branches(child) for name, child in branch.children.items()}
    return branch.clock, branch.offset, branch.retired_at, branch.waiting, branch.leases, children


STEPS = st.lists(st.tuples(st.sampled_from(PATHS), st.integers(1, 100), st.none() | st.integers(0, 3)), max_size=12)


@settings(derandomize=True)
@given(STEPS)
def test_a_lease_at_once_leaves_the_tree_as_a_lease_by_the_queue_does(
    steps: list[tuple[Path, int, int | None]],
) -> None:
    direct, queued = Replay(at_once), Replay(by_the_queue)
    for step in steps:
        direct.do(*step)
        queued.do(*step)
    assert direct.state() == queued.state()


ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "serve", "charge", "refund"]), st.integers(1, 4), st.integers(1, 50)), max_size=60
)


@settings(derandomize=True)
@given(ACTS)
def test_the_least_virtual_time_goes_first_and_no_refund_takes_it_far_behind_the_clock(
    acts: list[tuple[str, int, int]],
) -> None:
    root = Account(None, "")
    lane = Lane(0, LaneTarget("m", None, None), root)
    for key, (act, user, tokens) in enumerate(acts):
        account = root.child(user).child(user).child("").child("", leaf=True).hold(None)
        if act == "add":
            lane.add(key, (user, user, "", ""), 1.0)
        elif act == "serve" and len(lane):
            lane.take(lane.first()).account.charge(tokens)
        elif act == "charge":
            account.charge(tokens)
        elif act == "refund":
            account.refund(min(tokens, account.served), 10)
        waiting = [each for each in lane.root.children.values() if each.waiting]
        if waiting:
            times = [each.time for each in waiting]
            assert lane.root.turns.first().time - min(times) < ADVANCE
            assert min(times) > lane.root.clock - ADVANCE
            assert all(each.account.credit <= 10 * (each.account.leases + 3) for each in waiting)
        served = list(lane.order(lambda _: 10.0))
        assert sorted(served) == sorted(lane.leaves)
