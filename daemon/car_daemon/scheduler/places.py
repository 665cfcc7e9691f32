"""The places in the queue and the requests held back, shared at each level: users, processes, tenants, labels."""

from collections.abc import Collection, Iterable, Iterator
from itertools import count
from typing import Literal, NamedTuple

from car_daemon.scheduler.account import Name, Path
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_daemon.scheduler.order import Charging
from car_daemon.scheduler.request import RANKS, Request

# A model, and the rank of the class of its requests.
Kind = tuple[str, int]
URGENT, LOWEST = min(RANKS.values()), max(RANKS.values())
_CLASSES = range(URGENT, LOWEST + 1)
# What members are ranked by: their places, their bytes held back; of a kind the places that they may give up, their
# turn to enter the queue, and their oldest place.
By = tuple[Literal["places", "bytes", "gives", "enters", "oldest"], Kind | None]
Rank = tuple[float, ...]
PLACES: By = ("places", None)
BYTES: By = ("bytes", None)
ENTERS: By = ("enters", None)


class Places:
    """The places of a user, process, tenant or label; the root is above the users.

    The accounts below are ranked once a rank is read, and from then on at every change: most queues are never full.
    """

    __slots__ = (
        "begun",
        "children",
        "count",
        "held",
        "held_bytes",
        "latest",
        "name",
        "number",
        "parent",
        "places",
        "rankings",
        "weight",
    )

    def __init__(self, parent: "Places | None", name: Name, number: int = 0) -> None:
        self.parent = parent
        self.number = number  # of its begin
        self.name = name
        self.weight = 1.0
        self.children: dict[Name, Places] = {}
        self.count = 0
        self.places: dict[Kind, int] = {}
        self.latest = 0  # key of the request that got a place or was held back last
        self.held: dict[Kind, int] = {}  # requests that are held back
        self.held_bytes = 0
        self.begun = 0  # number of the entry since which requests were held back and none entered
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
        return sum([count((model, rank), 0) for rank in _CLASSES])

    def holds(self, model: str) -> bool:
        """Return whether requests for a model are held back."""
        return any((model, rank) in self.held for rank in _CLASSES)

    def first(self, by: By) -> Name | None:
        """Return the member that is first by a rank; None if there is none."""
        heap = self.rankings.get(by)
        if heap is None:
            heap = self.rankings[by] = LazyHeap()
            for each in self._members():
                self._set(heap, each, by)
        return heap.first()

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
        """Return the newest request for a model that gives up its place, of the lowest class; None if there is none.

        Each level gives by its account with most places. No class above `least_rank` gives.
        """
        kinds = ((model, rank) for rank in range(LOWEST, least_rank - 1, -1))
        kind = next((kind for kind in kinds if kind in self.places), None)
        return None if kind is None else self.find(("gives", kind))

    def enters(self, model: str) -> int:
        """Return the held-back request for a model that enters next; there is one.

        The class goes first. At each level the account with fewest places goes first; if several have as few, the
        account whose last entry is longest ago.
        """
        kind = next(kind for rank in _CLASSES if (kind := (model, rank)) in self.held)
        return self.find(("enters", kind))

    def _own_rank(self, by: By) -> Rank | None:
        what, kind = by
        # Nothing below a user decides between users.
        last = self.number if self.parent is not None and self.parent.parent is None else -self.latest
        if what == "places":
            return (-self.load, last) if self.count else None
        if what == "bytes":
            return (-self.held_bytes, last) if self.held_bytes else None
        if what == "gives":
            assert kind is not None
            return (-self.places[kind], last) if kind in self.places else None
        return (self.load, self.begun) if self._holds(kind) else None

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

    def __init__(self, parent: Places, name: Name, number: int) -> None:
        super().__init__(parent, name, number)
        self.requests: dict[Name, tuple[Kind, bool]] = {}  # their kind, and whether they are held back

    def find(self, by: By) -> int:
        """Return the first request by a rank; there is one."""
        key = self.first(by)
        assert isinstance(key, int)
        return key

    def oldest(self, ranks: Iterable[int]) -> int | None:
        """Return the oldest request with a place and of some classes; None if there is none."""
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

    def _members(self) -> Iterable[Name]:
        return self.requests


class Lacking(NamedTuple):
    """The first level at which a request's account has no place for its model."""

    parent: Places
    account: Places | None  # None: it has no places at all
    weight: float

    @property
    def is_user(self) -> bool:
        """Whether the account is a user."""
        return self.parent.parent is None


class PlaceTree:
    """Which request gives up its place, and which request that is held back enters."""

    def __init__(self, charging: Charging) -> None:
        self._charging = charging
        self._root = Places(None, "")
        self._numbers = count()
        self._weights = 0.0  # of the users in it

    def __repr__(self) -> str:
        return f"<PlaceTree {len(self._root.children)} users>"

    def enter(self, request: Request) -> None:
        """Count a place."""
        kind = request.model, RANKS[request.spec.priority]
        chain, label = self._chain(request.path)
        for each in chain:
            each.count += 1
            each.places[kind] = each.places.get(kind, 0) + 1
            each.latest = request.key
        label.requests[request.key] = kind, False
        self._changed(chain, request)

    def leave(self, request: Request) -> None:
        """Forget a place."""
        chain, label = self._chain(request.path)
        kind, _ = label.requests.pop(request.key)
        for each in chain:
            each.count -= 1
            _subtract(each.places, kind)
        self._changed(chain, request)

    def hold_back(self, request: Request, rank: int) -> None:
        """Count a request that is held back, as of a class of this rank."""
        kind = request.model, rank
        chain, label = self._chain(request.path)
        for each in chain:
            if not each.held:
                each.begun = next(self._numbers)
            each.held[kind] = each.held.get(kind, 0) + 1
            each.held_bytes += request.spec.size
            each.latest = request.key
        label.requests[request.key] = kind, True
        self._changed(chain, request)

    def take_back(self, request: Request, entering: Places | None = None) -> None:
        """Forget a request that was held back; if it enters now, `entering` is the highest account that gains by it."""
        chain, label = self._chain(request.path)
        kind, _ = label.requests.pop(request.key)
        enters = entering is not None
        for each in chain:
            _subtract(each.held, kind)
            each.held_bytes -= request.spec.size
            if each is entering:
                entering = None
            if enters and entering is None:
                each.begun = next(self._numbers)
        self._changed(chain, request)

    def lacking(self, request: Request) -> Lacking | None:
        """Return the first level at which a request's account has no place for its model; None if it has one."""
        parent = self._root
        for name in request.path:
            account = parent.children.get(name)
            if account is None or not account.places_of(request.model):
                is_user = parent is self._root
                return Lacking(parent, account, self._charging.weight(request.path[0]) if is_user else 1.0)
            parent = account
        return None

    def giver(self, request: Request, lacking: Lacking, limit: int, least_rank: int) -> int | None:
        """Return the place that a request takes at the level at which its account has none; None if none may be taken.

        It is of the sibling with most places for its weight, if that keeps at least as many as the account then has; a
        user also keeps its share of the `limit`. Otherwise the account's own model with most places gives one of two.
        """
        parent, account, weight = lacking
        name = parent.first(PLACES)
        sibling = None if name is None else parent.children[name]
        count = 0 if account is None else account.count
        if sibling is not None and sibling is not account and sibling.load > (count + 1) / weight:
            model = sibling.largest()
            if lacking.is_user:
                weights = self._weights + (weight if account is None else 0.0)
                gives = sibling.count > limit * sibling.weight / weights
            else:
                # A model gives to another one if it keeps more: else the account above may lack it, and take it back.
                gives = parent.places_of(model) > parent.places_of(request.model) + 1
                model = model if gives else request.model
            if (gives or not lacking.is_user) and (key := sibling.gives(model, least_rank)) is not None:
                return key
        if account is None or not account.count:
            return None
        model = account.largest()
        return account.gives(model, least_rank) if account.places_of(model) > 1 and model != request.model else None

    def lost(self, request: Request) -> Iterator[Places]:
        """Yield the accounts that have requests for a request's model held back, and no place for it any more."""
        each = self._root
        for name in request.path:
            child = each.children.get(name)
            if child is None:
                return
            each = child
            if each.holds(request.model) and not each.places_of(request.model):
                yield each

    def entering(self) -> int:
        """Return the request held back that enters next; there is one.

        It is of the user with fewest places for its weight, and of that the model with fewest; see `Places.enters`.
        """
        name = self._root.first(ENTERS)
        assert name is not None
        user = self._root.children[name]
        model = min({model for model, _ in user.held}, key=lambda each: (user.places_of(each), each))
        return user.enters(model)

    def user(self, request: Request) -> Places:
        """Return the account of a request's user; there is one."""
        return self._root.children[request.path[0]]

    def heaviest(self) -> int:
        """Return the newest request of the account that has most bytes held back: user, process, tenant, label."""
        return self._root.find(BYTES)

    def oldest(self, request: Request, ranks: Collection[int]) -> int | None:
        """Return the oldest place of a request's label and of some classes; None if there is none."""
        each = self._root
        for name in request.path:
            child = each.children.get(name)
            if child is None:
                return None
            each = child
        assert isinstance(each, LabelPlaces)
        return each.oldest(ranks)

    def count(self, uid: Name) -> int:
        """Return a user's places."""
        user = self._root.children.get(uid)
        return 0 if user is None else user.count

    def share(self, uid: Name, limit: int) -> int:
        """Return a user's share of a queue in whole places, at least one."""
        weight = self._charging.weight(uid)
        total = self._weights if uid in self._root.children else self._weights + weight
        return max(1, int(limit * weight / total))

    def set_weights(self) -> None:
        """Share the queue by the weights as they are now."""
        users = self._root.children.values()
        for user in users:
            user.weight = self._charging.weight(user.name)
        self._root.rankings.clear()
        self._weights = sum(user.weight for user in users)

    def _chain(self, path: Path) -> tuple[list[Places], LabelPlaces]:
        """Return the accounts of a path, and its last account; an account that is missing is made."""
        account, chain = self._root, list[Places]()
        for level, name in enumerate(path, 1):
            child = account.children.get(name)
            if child is None:
                kind = LabelPlaces if level == len(path) else Places
                child = account.children[name] = kind(account, name, next(self._numbers))
                if account is self._root:
                    child.weight = self._charging.weight(name)
                    self._weights += child.weight
            account = child
            chain.append(child)
        assert isinstance(account, LabelPlaces)
        return chain, account

    def _changed(self, chain: list[Places], request: Request) -> None:
        """Rank a request and its accounts anew, and forget the accounts that have nothing any more."""
        chain[-1].changed(request.key)
        for each in reversed(chain):
            parent = each.parent
            assert parent is not None
            if not (each.count or each.held):
                del parent.children[each.name]
                if parent is self._root:
                    self._weights = self._weights - each.weight if parent.children else 0.0
            parent.changed(each.name)


def _subtract(counts: dict[Kind, int], kind: Kind) -> None:
    counts[kind] -= 1
    if not counts[kind]:
        del counts[kind]
