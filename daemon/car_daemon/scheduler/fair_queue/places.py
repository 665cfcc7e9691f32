"""The places of one account in the queue, its requests that are held back, and the ranks of the accounts below it."""

from collections.abc import Iterable
from typing import Literal

from car_daemon.scheduler.fair_queue.lazy_heap import LazyHeap
from car_daemon.scheduler.fair_queue.tree import Account, Name
from car_daemon.scheduler.request import RANKS

# A model, and the rank of the class of its requests.
Kind = tuple[str, int]
# The rank of a place that is not given up: of running work that came back from a dead engine.
KEPT = -1
URGENT, LOWEST = min(RANKS.values()), max(RANKS.values())
_CLASSES = range(URGENT, LOWEST + 1)
# What members are ranked by: their places, their bytes held back; of a kind the places that they may give up, their
# turn to enter the queue, the time for which none of theirs entered it, and their oldest place.
By = tuple[Literal["places", "bytes", "gives", "enters", "waits", "oldest"], Kind | None]
Rank = tuple[float, ...]
PLACES: By = ("places", None)
BYTES: By = ("bytes", None)
ENTERS: By = ("enters", None)


class Places:
    """The places of a user, process, tenant or label; the root is above the users.

    The accounts below are ranked once a rank is read, and from then on at every change: most queues are never full.
    """

    __slots__ = (
        "account",
        "begun",
        "children",
        "count",
        "held",
        "held_bytes",
        "latest",
        "name",
        "parent",
        "places",
        "rankings",
        "since",
        "weight",
    )

    def __init__(self, parent: "Places | None", name: Name, weight: float = 1.0) -> None:
        self.parent = parent
        self.name = name
        self.weight = weight
        self.children: dict[Name, Places] = {}
        self.count = 0
        self.places: dict[Kind, int] = {}
        self.latest = 0  # key of the request that got a place or was held back last
        self.held: dict[Kind, int] = {}  # requests that are held back
        self.held_bytes = 0
        self.account: Account | None = None  # of the tree of service, while requests are held back
        self.since = 0.0  # the time from which on requests were held back and none entered
        self.begun = 0  # key of the request by which that began
        self.rankings: dict[By, LazyHeap[Rank, Name]] = {}  # of the members, the first first

    def __repr__(self) -> str:
        return f"<Places of {self.name!r}: {self.count}, {sum(self.held.values())} held back>"

    @property
    def load(self) -> float:
        """Places divided by the weight."""
        return self.count / self.weight

    def places_of(self, model: str) -> int:
        """Return the places for a model."""
        count = self.places.get
        return count((model, KEPT), 0) + sum([count((model, rank), 0) for rank in _CLASSES])

    def holds(self, model: str) -> bool:
        """Return whether requests for a model are held back."""
        return any((model, rank) in self.held for rank in _CLASSES)

    def first(self, by: By) -> Name | None:
        """Return the member that is first by a rank, None where there is none."""
        heap = self.rankings.get(by)
        if heap is None:
            heap = self.rankings[by] = LazyHeap()
            for each in self._members():
                self._set(heap, each, by)
        if by[0] != "enters":
            return heap.first()
        # Virtual times rise without a notice: the first by a time that has risen is set anew.
        while (member := heap.first()) is not None and len(heap) > 1 and self.rank(member, by) != heap.least():
            self._set(heap, member, by)
        return member

    def changed(self, member: Name) -> None:
        """Rank a member by what it has now."""
        for by, heap in self.rankings.items():
            self._set(heap, member, by)

    def rank(self, member: Name, by: By) -> Rank | None:
        """Return a member's rank, None for one that has nothing to be ranked."""
        child = self.children.get(member)
        return None if child is None else child._own_rank(by)

    def find(self, by: By) -> int:
        """Return the first request of the first account by a rank; there is one."""
        member = self.first(by)
        assert member is not None
        return self.children[member].find(by)

    def largest(self) -> str:
        """Return the model with most places; there is a place."""
        return min({model for model, _ in self.places}, key=lambda each: (-self.places_of(each), each))

    def gives(self, model: str, least_rank: int) -> int | None:
        """Return the newest request for a model that gives up its place, of the lowest class; None where there is none.

        Each level gives by its account with most of them. No class above `least_rank` gives.
        """
        kinds = ((model, rank) for rank in range(LOWEST, least_rank - 1, -1))
        kind = next((kind for kind in kinds if kind in self.places), None)
        return None if kind is None else self.find(("gives", kind))

    def enters(self, model: str, overdue: float) -> int:
        """Return the request for a model that enters next of those that are held back; there is one.

        The class goes first. At each level the account with fewest places goes first; of several the one of which none
        entered since `overdue` or before, else the one with the least virtual time.
        """
        kind = next(kind for rank in _CLASSES if (kind := (model, rank)) in self.held)
        return self._enters(kind, overdue)

    def _enters(self, kind: Kind, overdue: float) -> int:
        longest, next_one = self.first(("waits", kind)), self.first(("enters", kind))
        assert longest is not None
        assert next_one is not None
        child = self.children[longest]
        return (child if child.since <= overdue else self.children[next_one])._enters(kind, overdue)

    def _own_rank(self, by: By) -> Rank | None:
        what, kind = by
        rank: Rank | None
        if what == "places":
            rank = (-self.load, -self.latest) if self.count else None
        elif what == "bytes":
            rank = (-self.held_bytes, -self.latest) if self.held_bytes else None
        elif what == "gives":
            assert kind is not None
            rank = (-self.places[kind], -self.latest) if kind in self.places else None
        else:
            rank = self._turn(what == "waits") if self._holds(kind) else None
        # Names of users need no other last rank: nothing below a user decides between users.
        is_user = self.parent is not None and self.parent.parent is None
        return rank[:-1] if is_user and rank is not None else rank

    def _turn(self, waits: bool) -> Rank:
        assert self.account is not None
        return self.load, self.since if waits else self.account.time, self.begun

    def _holds(self, kind: Kind | None) -> bool:
        return bool(self.held) if kind is None else kind in self.held

    def _members(self) -> Iterable[Name]:
        return self.children

    def _set(self, heap: LazyHeap[Rank, Name], member: Name, by: By) -> None:
        rank = self.rank(member, by)
        if rank is None:
            heap.discard(member)
        else:
            heap.set(member, rank)


class LabelPlaces(Places):
    """The places of a label; its members are requests, by key."""

    __slots__ = ("requests",)

    def __init__(self, parent: Places, name: Name) -> None:
        super().__init__(parent, name)
        self.requests: dict[Name, tuple[Kind, bool]] = {}  # their kind, and whether they are held back

    def find(self, by: By) -> int:
        """Return the first request by a rank; there is one."""
        key = self.first(by)
        assert isinstance(key, int)
        return key

    def oldest(self, ranks: Iterable[int]) -> int | None:
        """Return the oldest request with a place and of some classes; None where there is none."""
        kinds = [kind for kind in self.places if kind[1] in ranks]
        return min((self.find(("oldest", kind)) for kind in kinds), default=None)

    def rank(self, member: Name, by: By) -> Rank | None:
        """Return a request's rank: the newest gives up its place or its bytes, the oldest goes first."""
        assert isinstance(member, int)
        what, kind = by
        own, held = self.requests.get(member, (None, False))
        if own is None or held != (what in ("bytes", "enters")) or kind not in (None, own):
            return None
        return (member,) if what in ("enters", "oldest") else (-member,)

    def _enters(self, kind: Kind, overdue: float) -> int:
        return self.find(("enters", kind))

    def _members(self) -> Iterable[Name]:
        return self.requests
