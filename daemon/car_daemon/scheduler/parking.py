"""Parking: the running work that makes room for waiters, and the pause of work whose client does not read."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from car_daemon.scheduler.fair_tree import ADVANCE, Account
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.lane import Lane
from car_daemon.scheduler.lazy_heap import LazyHeap
from car_daemon.scheduler.order import Reservation, WaitingRequests
from car_daemon.scheduler.request import RANKS, Decisions, Park, Remind, Request, State

# A request that was parked this often runs for a while before it is parked again, because every parking delays it.
_FREE_PARKINGS = 2
_REST_S = 1.0
# Running requests that are looked at for one that a waiter may replace.
_MOST_TRIES = 64


class Replaceable:
    """Running requests that may be parked, found by class and model with the fewest tokens first."""

    def __init__(self) -> None:
        self._unranked: dict[int, Request] = {}  # by key, in no heap before a waiter needs one
        self._heaps: dict[
            tuple[int, str | None], LazyHeap[int, int]
        ] = {}  # the others by class and model, or any model

    def add(self, request: Request) -> None:
        """Add a request."""
        self._unranked[request.key] = request

    def discard(self, request: Request) -> None:
        """Remove a request if it is there."""
        if self._unranked.pop(request.key, None) is None:
            for heap in self._heaps_of(request):
                heap.discard(request.key)

    def least(
        self, rank: int, model: str | None, running: dict[int, Request], accepts: Callable[[Request], bool]
    ) -> Request | None:
        """Return the accepted request with the fewest tokens; of very many the first that is found."""
        for unranked in self._unranked.values():
            for each in self._heaps_of(unranked):
                each.set(unranked.key, 0)
        self._unranked.clear()
        heap = self._heaps.get((rank, model))
        if heap is None:
            return None
        refused: list[tuple[int, int]] = []
        found = None
        while found is None and len(refused) < _MOST_TRIES and (key := heap.first()) is not None:
            request = running[key]
            tokens = request.prompt_done + request.produced
            if tokens != heap.least():
                heap.set(key, tokens)
            elif accepts(request):
                found = request
            else:
                refused.append((key, tokens))
                heap.discard(key)
        for key, tokens in refused:
            heap.set(key, tokens)
        return found

    def _heaps_of(self, request: Request) -> list[LazyHeap[int, int]]:
        rank = RANKS[request.spec.priority]
        return [self._heaps.setdefault((rank, model), LazyHeap()) for model in (request.model, None)]


class _Preemption(Struct):
    """A running request that is being parked for a waiter."""

    victim: Request
    account: Account  # of the waiter, which counts the lease to come
    giver: Account | None  # the user, process, ... that gives up one of its leases; None for work of a lower class
    crosses: tuple[str, str | None] | None  # the waiter's model and device where the victim frees none of its sequences


class Preemptions:
    """The requests that are being parked, each for one waiter or, as a spare, for the next that it suits."""

    def __init__(self) -> None:
        self._spare: dict[str, dict[int, Request]] = {}  # requests that are being parked for no waiter, by model
        self._preemptions: dict[int, _Preemption] = {}  # by the key of the waiter
        self._waiters: dict[int, int] = {}  # keys of waiters by the key of the request that is being parked
        self._crossing: Counter[tuple[str, str | None]] = Counter()  # those across models, by model and device

    def __len__(self) -> int:
        return len(self._preemptions)

    def __contains__(self, waiter: Request) -> bool:
        return waiter.key in self._preemptions

    @property
    def has_spares(self) -> bool:
        """True if requests are being parked for no waiter."""
        return any(self._spare.values())

    def crossing(self, waiter: Request) -> int:
        """Return the preemptions for a waiter's model and device that free sequences of other models."""
        return self._crossing[waiter.model, waiter.spec.device]

    def begin(self, waiter: Request, victim: Request, giver: Account | None, *, crosses: bool) -> None:
        """Note that a request is being parked for a waiter, whose account counts the lease to come."""
        account = _account(waiter)
        account.count_lease(1)
        crossed = (waiter.model, waiter.spec.device) if crosses else None
        if crossed is not None:
            self._crossing[crossed] += 1
        self._preemptions[waiter.key] = _Preemption(victim, account, giver, crossed)
        self._waiters[victim.key] = waiter.key

    def parked(self, victim: Request) -> Reservation | None:
        """Forget a request that is parked by now, or has ended; return the lease that was given up for a waiter."""
        self._spare.get(victim.model, {}).pop(victim.key, None)
        waiter = self._waiters.get(victim.key)
        if waiter is None:
            return None
        giver = self._end(waiter).giver
        return None if giver is None else Reservation(waiter, giver)

    def left(self, waiter: Request) -> None:
        """Let what is being parked for a request help another, because it waits no more."""
        if waiter.key in self._preemptions:
            self.spare(self._end(waiter.key).victim)

    def spare(self, victim: Request) -> None:
        """Keep a request that is being parked for the next waiter that it suits."""
        self._spare.setdefault(victim.model, {})[victim.key] = victim

    def take_spare(
        self, waiter: Request, suits: Callable[[Request], bool], frees: Callable[[Request], bool] | None
    ) -> Request | None:
        """Return and take a spare of the waiter's model that suits it, else of any model one that `frees` a lease."""
        own = self._spare.get(waiter.model, {})
        found = next((each for each in own.values() if suits(each)), None)
        if found is None and frees is not None:
            found = next((each for spares in self._spare.values() for each in spares.values() if frees(each)), None)
        if found is not None:
            del self._spare[found.model][found.key]
        return found

    def _end(self, waiter: int) -> _Preemption:
        preemption = self._preemptions.pop(waiter)
        preemption.account.count_lease(-1)
        if preemption.crosses is not None:
            self._crossing[preemption.crosses] -= 1
        del self._waiters[preemption.victim.key]
        return preemption


class Victims:
    """Chooses the running request that a waiter replaces."""

    def __init__(self, gate: Gate, replaceable: Replaceable, running: dict[int, Request]) -> None:
        self._gate = gate
        self._replaceable = replaceable
        self._running = running

    def best(self, waiter: Request, now: float, *, any_model: bool) -> tuple[Request | None, Account | None]:
        """Return the replaceable request of the lowest class with the fewest tokens in its cells.

        If it is of the waiter's class, the account that gives up the lease is returned too.
        """
        rank, model = RANKS[waiter.spec.priority], None if any_model else waiter.model
        least = partial(self._replaceable.least, model=model, running=self._running)

        def may_leave(request: Request) -> bool:
            if _rested_at(request) > now:
                return False
            return (any_model and self.frees_machine(request)) or self.frees_sequence(request, waiter)

        for lower in range(max(RANKS.values()), rank, -1):
            if (victim := least(lower, accepts=may_leave)) is not None:
                return victim, None
        accounts = _chain(_account(waiter))
        lacking = next((each for each in accounts if not each.leases), None)
        if lacking is None or lacking.parent is None or not lacking.parent.several:
            return None, None
        victim = least(rank, accepts=lambda each: may_leave(each) and _giver(_account(each), lacking) is not None)
        return victim, None if victim is None else _giver(_account(victim), lacking)

    def frees_sequence(self, request: Request, waiter: Request) -> bool:
        """Return True if the sequence of a running request suits a waiter."""
        assert request.engine is not None
        return request.model == waiter.model and self._gate.suits(waiter, request.engine)

    def frees_machine(self, request: Request) -> bool:
        """Return True if a running request counts under the limit of this machine."""
        assert request.engine is not None
        return self._gate.is_here(request.engine)


class Parkings:
    """The running requests, and the parkings of those that make room for waiters or whose clients do not read.

    A waiter replaces work of a lower class; or work of its own class: if its user has no lease, of a user that has
    several; within a user likewise by process, then by tenant, then by label. What such a lease was charged in advance
    counts as not yet served, and the account that gives it up does not get it back before the waiter. Parked requests
    wait for a lease too, but nothing is parked for them. Where all that could be parked was parked often and has just
    gone on, `plan` is due again at `next_look`.
    """

    def __init__(self, waiting: WaitingRequests, gate: Gate, decisions: Decisions) -> None:
        self._waiting = waiting
        self._gate = gate
        self._decisions = decisions
        self._running: dict[int, Request] = {}  # by key
        self._often_parked: dict[int, Request] = {}  # of them, those that rest between parkings
        self._replaceable = Replaceable()
        self._victims = Victims(gate, self._replaceable, self._running)
        self._preemptions = Preemptions()
        self.reservations: list[Reservation] = []  # of requests that are parked since the last leases
        self.next_look: float | None = None
        self._looked_at_again: dict[Lane, None] = {}  # lanes whose waiters are looked at then

    def __repr__(self) -> str:
        return f"<Parkings {len(self._running)} running, {len(self._preemptions)} preempted for waiters>"

    def started(self, request: Request, now: float) -> None:
        """Add a request that got a lease, which its accounts count already."""
        self._preemptions.left(request)
        self._running[request.key] = request
        request.parking.since = now
        if request.parking.count >= _FREE_PARKINGS:
            self._often_parked[request.key] = request
        self._replaceable.add(request)

    def stopped(self, request: Request) -> None:
        """Remove a request that runs no more, whose lease its accounts count until it is returned."""
        if self._running.pop(request.key, None) is None:
            return
        self._often_parked.pop(request.key, None)
        if request.parking.requested:
            if (reservation := self._preemptions.parked(request)) is not None:
                self.reservations.append(reservation)
        else:
            self._replaceable.discard(request)

    def left(self, waiter: Request) -> None:
        """Let what is being parked for a request help another, because it waits no more."""
        self._preemptions.left(waiter)

    def plan(self, now: float) -> Iterator[Park | Remind]:
        """Yield the parkings for new waiters, and for the first waiters of the lanes that changed or are due."""
        waiting, lanes = self._waiting, self._waiting.touched
        if self.next_look is not None and self.next_look <= now:
            lanes = lanes | self._looked_at_again
            self.none_waits()
        for lane in lanes:
            if lane.leaves:
                yield from self._parking_for(waiting.requests[lane.first()], now)
        for request in waiting.newcomers:
            if request.lane is not None:
                yield from self._parking_for(request, now)

    def none_waits(self) -> None:
        """Forget the waiters that nothing could be parked for."""
        self._looked_at_again.clear()
        self.next_look = None

    def pause(self, request: Request) -> list[Park]:
        """Park a started request until `unpause`; a pause is not one of the parkings it can bear."""
        if request.state is State.PARKED and not request.parking.paused:
            self._waiting.remove(request)
        elif request.state is not State.RUNNING:
            return []
        request.parking.paused = True
        request.parking.to_peer = True
        if request.parking.requested or request.state is State.PARKED:
            return []
        if self._decisions.sink is not None:
            self._decisions.sink("park", request, "paused: its client does not read")
        park = self._park(request)
        self._preemptions.spare(request)
        return [park]

    def unpause(self, request: Request, now: float) -> None:
        """Let a paused request get a lease again."""
        if request.parking.paused and request.state is State.PARKED:
            self._waiting.add(request, now)
        request.parking.paused = False

    def _parking_for(self, waiter: Request, now: float) -> Iterator[Park | Remind]:
        """Yield the parking for one waiter, if one is needed and possible; else when to look again, if ever."""
        preemptions = self._preemptions
        if waiter.state is not State.WAITING or waiter in preemptions or not (self._running or preemptions.has_spares):
            return
        # A parking of any model helps where a sequence of the waiter's model is free and only the machine's limit is
        # reached.
        any_model = self._gate.kept_free(waiter) > preemptions.crossing(waiter)
        frees = partial(self._victims.frees_sequence, waiter=waiter)
        giver = None
        victim = preemptions.take_spare(waiter, frees, self._victims.frees_machine if any_model else None)
        if victim is None:
            victim, giver = self._victims.best(waiter, now, any_model=any_model)
            if victim is None:
                yield from self._look_again(waiter, now)
                return
            victim.parking.count += 1
            victim.parking.to_peer = victim.spec.priority == waiter.spec.priority
            if self._decisions.sink is not None:
                why = "its client has several leases" if victim.parking.to_peer else "a higher class"
                self._decisions.sink("park", victim, f"for request {waiter.key}: {why}")
            yield self._park(victim)
        preemptions.begin(waiter, victim, giver, crosses=not frees(victim))

    def _look_again(self, waiter: Request, now: float) -> Iterator[Remind]:
        """Look at a waiter again when the next running request may be parked that may not be now; yield a reminder."""
        if self.next_look is None:
            times = (time for request in self._often_parked.values() if (time := _rested_at(request)) > now)
            self.next_look = min(times, default=None)
            if self.next_look is None:
                return
            yield Remind(self.next_look)
        if waiter.lane is not None:
            self._looked_at_again[waiter.lane] = None

    def _park(self, request: Request) -> Park:
        assert request.engine is not None
        assert request.account is not None
        request.account.count_lease(-1)
        self._replaceable.discard(request)
        request.parking.requested = True
        return Park(request.key, request.engine)


def _rested_at(request: Request) -> float:
    """Return the time from which on a running request may be parked for another."""
    parking = request.parking
    return parking.since + _REST_S if parking.count >= _FREE_PARKINGS else parking.since


def _account(request: Request) -> Account:
    """Return the account of a waiting or running request."""
    if request.lane is not None:
        return request.lane.leaves[request.key].account
    assert request.account is not None
    return request.account


def _chain(account: Account) -> list[Account]:
    """Return the accounts from the user's to the label's."""
    chain, each = [account], account.parent
    while each is not None and each.parent is not None:
        chain.append(each)
        each = each.parent
    return chain[::-1]


def _giver(account: Account, lacking: Account) -> Account | None:
    """Return the sibling of `lacking` that has a request's account below it and may give up a lease, if it may.

    It has several leases, and was not served less than `lacking` where the advance for its leases counts as not served.
    """
    giver = next((each for each in _chain(account) if each.parent is lacking.parent), None)
    if giver is None or giver.leases < 2:
        return None
    return giver if lacking.time <= giver.time + ADVANCE * giver.leases / giver.weight else None
