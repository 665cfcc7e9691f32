"""The places in the queue and the requests held back, shared at each level: users, processes, tenants, labels."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from car_daemon.scheduler.fair_queue.charging import Charging
from car_daemon.scheduler.fair_queue.places import BYTES, ENTERS, KEPT, PLACES, Kind, LabelPlaces, Places
from car_daemon.scheduler.fair_queue.tree import Path
from car_daemon.scheduler.request import RANKS, Request


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
    """Which request gives up its place, and which of those held back enters."""

    def __init__(self, charging: Charging) -> None:
        self._charging = charging
        self._root = Places(None, "")
        self._weights = 0.0  # of the users in it

    def __repr__(self) -> str:
        return f"<PlaceTree {len(self._root.children)} users>"

    def enter(self, request: Request) -> None:
        """Count a place."""
        kind = request.model, KEPT if request.leased_at is not None else RANKS[request.spec.priority]
        chain = self._chain(request.path)
        for each in chain:
            each.count += 1
            each.places[kind] = each.places.get(kind, 0) + 1
            each.latest = request.key
        chain[-1].requests[request.key] = kind, False
        self._changed(chain, request)

    def leave(self, request: Request) -> None:
        """Forget a place."""
        chain = self._chain(request.path)
        kind, _ = chain[-1].requests.pop(request.key)
        for each in chain:
            each.count -= 1
            _subtract(each.places, kind)
        self._changed(chain, request)

    def hold_back(self, request: Request, rank: int) -> None:
        """Count a request that is held back, as of a class of this rank; its accounts count it as one that waits."""
        user, process, tenant, label = request.path
        users = self._charging.root
        account = users.child(user, self._charging.weight(user)).child(process).child(tenant).child(label, leaf=True)
        account.hold(None).add_waiting()
        kind, chain = (request.model, rank), self._chain(request.path)
        for each in reversed(chain):
            if not each.held:
                each.since, each.begun = request.waits_since, request.key
            each.account = account
            each.held[kind] = each.held.get(kind, 0) + 1
            each.held_bytes += request.spec.size
            each.latest = request.key
            assert account.parent is not None
            account = account.parent
        chain[-1].requests[request.key] = kind, True
        self._changed(chain, request)

    def take_back(self, request: Request, entered: float | None = None) -> None:
        """Forget a request that was held back; `entered` is the time if it enters the queue now."""
        chain = self._chain(request.path)
        label = chain[-1]
        kind, _ = label.requests.pop(request.key)
        account = label.account
        assert account is not None
        if entered is not None:
            account.serve()
        account.remove_waiting()
        account.let_go()
        for each in chain:
            _subtract(each.held, kind)
            each.held_bytes -= request.spec.size
            if not each.held:
                each.account = None
            elif entered is not None:
                each.since, each.begun = entered, request.key
        self._changed(chain, request)

    def lacking(self, request: Request) -> Lacking | None:
        """Return the first level at which a request's account has no place for its model, None where it has one."""
        parent = self._root
        for name in request.path:
            account = parent.children.get(name)
            if account is None or not account.places_of(request.model):
                is_user = parent is self._root
                return Lacking(parent, account, self._charging.weight(request.path[0]) if is_user else 1.0)
            parent = account
        return None

    def giver(self, request: Request, lacking: Lacking, limit: int, least_rank: int) -> int | None:
        """Return the place that a request takes at the level where its account has none; None where there is none.

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

    def entering(self, overdue: float) -> int:
        """Return the request held back that enters next; there is one.

        It is of the user with fewest places for its weight, and of that the model with fewest; see `Places.enters`.
        """
        name = self._root.first(ENTERS)
        assert name is not None
        user = self._root.children[name]
        model = min({model for model, _ in user.held}, key=lambda each: (user.places_of(each), each))
        return user.enters(model, overdue)

    def heaviest(self) -> int:
        """Return the newest request of the account that has most bytes held back: user, process, tenant, label."""
        return self._root.find(BYTES)

    def oldest(self, request: Request, ranks: Collection[int]) -> int | None:
        """Return the oldest place of a request's label and of some classes; None where there is none."""
        each = self._root
        for name in request.path:
            child = each.children.get(name)
            if child is None:
                return None
            each = child
        assert isinstance(each, LabelPlaces)
        return each.oldest(ranks)

    def count(self, uid: int) -> int:
        """Return a user's places."""
        user = self._root.children.get(uid)
        return 0 if user is None else user.count

    def share(self, uid: int, limit: int) -> int:
        """Return a user's share of a queue in whole places, at least one."""
        weight = self._charging.weight(uid)
        total = self._weights if uid in self._root.children else self._weights + weight
        return max(1, int(limit * weight / total))

    def set_weights(self) -> None:
        """Share the queue by the weights as they are now."""
        users = self._root.children.values()
        for user in users:
            user.weight = self._charging.weight(int(user.name))
        self._root.rankings.clear()
        self._weights = sum(user.weight for user in users)

    def _chain(self, path: Path) -> tuple[Places, Places, Places, LabelPlaces]:
        """Return the accounts of a path, which are made where there are none."""
        uid, process_name, tenant_name, label_name = path
        user = self._root.children.get(uid)
        if user is None:
            user = self._root.children[uid] = Places(self._root, uid, self._charging.weight(uid))
            self._weights += user.weight
        process = user.children.get(process_name)
        if process is None:
            process = user.children[process_name] = Places(user, process_name)
        tenant = process.children.get(tenant_name)
        if tenant is None:
            tenant = process.children[tenant_name] = Places(process, tenant_name)
        label = tenant.children.get(label_name)
        if label is None:
            label = tenant.children[label_name] = LabelPlaces(tenant, label_name)
        assert isinstance(label, LabelPlaces)
        return user, process, tenant, label

    def _changed(self, chain: tuple[Places, Places, Places, LabelPlaces], request: Request) -> None:
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
