"""Parking: the running work that gives way to waiters without a lease, and the pause of work whose client is slow."""

from collections.abc import Iterator
from itertools import islice

from car_base.ipc.engine_settings import STEP_TARGET_MS
from car_daemon.scheduler.account import TURN, Account
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.lane import LOOKED_AT
from car_daemon.scheduler.order import WaitingRequests
from car_daemon.scheduler.request import RANKS, Decisions, Remind, Request, SendPark, State

# A lease that is over at once would move cells for nothing: it lasts for a step, and for so long that moving its cells
# there and back takes at most 3% of it, at 1 µs for each cell.
_STEP_S = STEP_TARGET_MS / 1000
_S_PER_CELL = 2e-6 / 0.03


class Parkings:
    """The running requests by the age of their leases, and the requests parked for waiters or for slow clients.

    A waiter that never had a lease takes one: of a lower class at once; else, at the first level (user, process, label)
    at which its account has no lease, of a sibling that is not behind it. A sibling with several leases gives way
    first; then an answer that has had its turn, which is its first 64 tokens; then a prompt that has no token yet. The
    last lease of an account also ran for as long as it was set aside. Of equal leases the youngest goes. The waiter
    gets the sequence; a parked request takes none and returns by the tree, so there are at most as many parkings as
    requests. After a look of waiters `plan` is due again at `next_look`.
    """

    def __init__(self, waiting: WaitingRequests, gate: Gate, decisions: Decisions) -> None:
        self._waiting = waiting
        self._gate = gate
        self._decisions = decisions
        self._running: dict[tuple[int, str], dict[int, Request]] = {}  # by rank and model, then by key, youngest last
        self._for: dict[int, Request] = {}  # waiters, by the key of the request that is being parked for each
        # The same, by the waiter's key, with its account of its model and that of all.
        self._taking: dict[int, tuple[Request, Account, Account]] = {}
        self.handed: list[Request] = []  # waiters whose sequences became free since the last leases
        self.next_look: float | None = None

    def __repr__(self) -> str:
        return f"<Parkings {sum(map(len, self._running.values()))} running, {len(self._for)} parked for waiters>"

    def started(self, request: Request, now: float) -> None:
        """Add a request that got a lease, which its accounts count already."""
        self.left(request)
        parking = request.parking
        parking.rest = now - request.waits_since if parking.count else 0.0
        parking.since = now
        parking.rank = 0 if self._waiting.aged(request, now) else RANKS[request.spec.priority]
        self._running.setdefault((parking.rank, request.model), {})[request.key] = request

    def stopped(self, request: Request) -> None:
        """Remove a request that runs no more, whose lease its accounts count until it is returned."""
        self._remove(request)
        if request.key in self._for and not self._is_leased(request):
            self.released(request.key)

    def released(self, key: int) -> None:
        """Hand the sequence of a request to its waiter; a request that was cancelled keeps it for a step more."""
        if (waiter := self._for.get(key)) is not None:
            self.left(waiter)
            self.handed.append(waiter)

    def _is_leased(self, request: Request) -> bool:
        return request.engine is not None and request.key in self._gate.leased_keys(request.engine)

    def left(self, waiter: Request) -> None:
        """Forget for whom a request is being parked, because it waits no more."""
        if (taking := self._taking.pop(waiter.key, None)) is not None:
            victim, label, account = taking
            del self._for[victim.key]
            label.hold(-1)
            account.hold(-1)
            self._waiting.seek(label)

    def plan(self, now: float) -> Iterator[SendPark | Remind]:
        """Yield the parkings for new waiters, and for all labels without a lease when a look is due."""
        for waiter in self._waiting.newcomers:
            if self._may_take(waiter) and (victim := self._of_lower_class(waiter)) is not None:
                yield self._take(victim, waiter)
        due = self.next_look is not None and self.next_look <= now
        if due:
            self.next_look = None
        looked = False
        for waiter in self._waiting.seekers(new=not due):
            if self._may_take(waiter):
                looked = True
                if (victim := self._of_siblings(waiter, now)) is not None:
                    yield self._take(victim, waiter)
        if looked and self.next_look is None:
            # For who found nothing, and for the siblings of who did: of a tenant one label looks at a time.
            self.next_look = now + _STEP_S
            yield Remind(self.next_look)

    def none_waits(self) -> None:
        """Forget the waiters that nothing could be parked for."""
        self.next_look = None

    def pause(self, request: Request) -> list[SendPark]:
        """Park a started request until `unpause`; a pause is not one of its parkings for others."""
        if request.state is State.PARKED and not request.parking.paused:
            self._waiting.remove(request)
        elif request.state is not State.RUNNING:
            return []
        request.parking.paused = True
        if request.parking.requested or request.state is State.PARKED:
            return []
        if self._decisions.sink is not None:
            self._decisions.sink("park", request, "paused: its client does not read")
        return [self._park(request)]

    def unpause(self, request: Request, now: float) -> None:
        """Let a paused request get a lease again."""
        if request.parking.paused and request.state is State.PARKED:
            self._waiting.add(request, now)
        request.parking.paused = False

    def _may_take(self, waiter: Request) -> bool:
        return waiter.kind is not None and waiter.state is State.WAITING and not waiter.parking.took

    def _take(self, victim: Request, waiter: Request) -> SendPark:
        victim.parking.count += 1
        waiter.parking.took = True
        if self._decisions.sink is not None:
            why = "its turn is over" if victim.parking.rank == RANKS[waiter.spec.priority] else "a higher class"
            self._decisions.sink("park", victim, f"for request {waiter.key}: {why}")
        label, account = waiter.label, waiter.account
        assert label is not None
        assert account is not None
        label.hold(1)
        account.hold(1)
        self._for[victim.key] = waiter
        self._taking[waiter.key] = victim, label, account
        return self._park(victim)

    def _park(self, request: Request) -> SendPark:
        assert request.engine is not None
        assert request.label is not None
        assert request.account is not None
        request.label.hold(-1)
        request.account.hold(-1)
        self._waiting.seek(request.label)
        self._remove(request)
        request.parking.requested = True
        return SendPark(request.key, request.engine)

    def _remove(self, request: Request) -> None:
        self._running.get((request.parking.rank, request.model), {}).pop(request.key, None)

    def _of_lower_class(self, waiter: Request) -> Request | None:
        """Return the request of the lowest class below a waiter's that gives way to it, if there is one."""
        ranks = range(max(RANKS.values()), RANKS[waiter.spec.priority], -1)
        return next((each for rank in ranks for each in self._youngest(rank, waiter)), None)

    def _of_siblings(self, waiter: Request, now: float) -> Request | None:
        """Return the request of a waiter's class that gives way to it now, if there is one."""
        assert waiter.kind is not None
        lacking = next((each for each in self._accounts(waiter) if not each.held), None)
        if lacking is None:
            return None
        spoke = silent = None
        for each in self._youngest(waiter.kind.rank, waiter):
            giver = next((above for above in self._accounts(each) if above.parent is lacking.parent), None)
            if giver is None or lacking.time > giver.time + TURN * giver.held / giver.weight:
                continue
            several = giver.held > 1
            if now - each.parking.since < max(_shortest(each), 0.0 if several else each.parking.rest):
                continue
            if several:
                return each
            if each.produced >= TURN:
                spoke = spoke or each
            elif not each.produced:
                silent = silent or each
        return spoke or silent

    def _accounts(self, request: Request) -> list[Account]:
        """Return a request's accounts from the user's on: of its model, or of all that share the machine's limit."""
        label = request.label if self._gate.machine_limit is None else request.account
        assert label is not None
        return label.chain

    def _youngest(self, rank: int, waiter: Request) -> Iterator[Request]:
        """Yield running requests of a class whose lease would help a waiter, of each model the youngest first."""
        gate, models = self._gate, [waiter.model]
        if gate.kept_free(waiter) > self._crossing(waiter):
            # Only the limit of the machine keeps a sequence from it: any model's lease helps.
            models += [model for _, model in self._running if model != waiter.model]
        for model in dict.fromkeys(models):
            for each in islice(reversed(self._running.get((rank, model), {}).values()), LOOKED_AT):
                assert each.engine is not None
                if gate.suits(waiter, each.engine) if model == waiter.model else gate.is_here(each.engine):
                    yield each

    def _crossing(self, waiter: Request) -> int:
        """Return the requests of other models that are being parked for a waiter's model and device."""
        own = waiter.model, waiter.spec.device
        helped = [each.key for each in self._for.values() if (each.model, each.spec.device) == own]
        return sum(self._taking[key][0].model != waiter.model for key in helped)


def _shortest(request: Request) -> float:
    """Return the seconds for which a request keeps a lease against its class at least."""
    return max(_STEP_S, (request.prompt_done + request.produced) * _S_PER_CELL)
