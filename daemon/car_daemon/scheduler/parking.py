"""Which running work makes room for requests that find no lease, and work that is held for a reason of its own."""

from collections import Counter
from collections.abc import Collection

from car_daemon.scheduler.actions import Park
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import RANKS, Request, State
from car_daemon.scheduler.waiting import Waiting

# After that many a request stays where it is: it has been moved around enough.
_MOST_PARKINGS = 2


def plan_parking(leased: Collection[Request], waiting: Waiting, gate: Gate, now: float) -> list[Park]:
    """Return which of the `leased` requests are parked for waiters, in the order in which these may have a lease.

    A waiter takes the place of work of a lower class; or, where its client holds no lease, of work of its own class
    whose client holds several. Parked requests wait for a lease too, but nobody is parked for them.
    """
    plan = _Plan(leased, gate)
    if not any(waiter.state is State.WAITING and plan.may_help(waiter) for waiter in waiting):
        return []
    waiters = [waiter for waiter in waiting.ordered(now) if waiter.state is State.WAITING]
    return [action for waiter in waiters for action in plan.parkings_for(waiter)]


def hold(request: Request, waiting: Waiting) -> list[Park]:
    """Keep a request that was started from having a lease; that is none of the parkings it can bear."""
    if request.state is State.PARKED and not request.held:
        waiting.remove(request)
    elif request.state is not State.RUNNING:
        return []
    request.held = True
    # Afterwards it waits for its turn as all others of its class.
    request.yielded = True
    if request.parking or request.state is State.PARKED:
        return []
    request.parking = True
    return [Park(request.key, _engine_of(request))]


def release(request: Request, waiting: Waiting, now: float) -> None:
    """Let a request that was held have a lease again."""
    if request.held and request.state is State.PARKED:
        waiting.add(request, now)
    request.held = False


class _Plan:
    """Who makes room for whom in one pass."""

    def __init__(self, leased: Collection[Request], gate: Gate) -> None:
        self._gate = gate
        # Mutable state: who runs, and who of them leaves and helps nobody yet; the leases of each client; and how many
        # were helped to a free sequence of each model, which lacked no more than the machine's limit.
        self._running = [request for request in leased if request.state is State.RUNNING]
        self._leaving = [request for request in self._running if request.parking]
        self._leases = Counter(request.client for request in self._running if not request.parking)
        self._helped: Counter[tuple[str, str | None]] = Counter()

    def may_help(self, waiter: Request) -> bool:
        """Tell in short whether anybody could be parked for a waiter: most waiters have no such hope."""
        if waiter.priority == "latency_critical" and any(each.priority == "throughput" for each in self._running):
            return True
        return not self._leases[waiter.client] and max(self._leases.values(), default=0) > 1

    def parkings_for(self, waiter: Request) -> list[Park]:
        """Return who is parked for one more waiter, if anybody has to be and may be."""
        # Whoever it is makes room where a sequence of its model is free and only the machine's limit is reached.
        anybody = self._gate.kept_free(waiter) > self._helped[waiter.model, waiter.device]
        victim = None if self._is_helped(waiter, anybody=anybody) else self._victim(waiter, anybody=anybody)
        return [] if victim is None else [_park(victim, waiter)]

    def _is_helped(self, waiter: Request, *, anybody: bool) -> bool:
        """Tell whether somebody makes room for a waiter already, who helps nobody else then."""
        helpers = [request for request in self._leaving if anybody or self._leaves_its_sequence(request, waiter)]
        helper = min(helpers, key=lambda request: request.model != waiter.model, default=None)
        if helper is None:
            return False
        self._leaving.remove(helper)
        self._leases[waiter.client] += 1
        self._help(helper, waiter)
        return True

    def _victim(self, waiter: Request, *, anybody: bool) -> Request | None:
        """Return who is parked for a waiter: of the lowest class, with the fewest tokens in its cells."""
        replaceable = [each for each in self._running if self._may_replace(waiter, each)]
        victim = min(
            (each for each in replaceable if anybody or self._leaves_its_sequence(each, waiter)),
            key=lambda request: (-RANKS[request.priority], request.prompt_done + request.produced),
            default=None,
        )
        if victim is not None:
            self._leases[victim.client] -= 1
            self._leases[waiter.client] += 1
            self._help(victim, waiter)
        return victim

    def _may_replace(self, waiter: Request, request: Request) -> bool:
        if request.parking or request.parkings >= _MOST_PARKINGS:
            return False
        lower = RANKS[request.priority] - RANKS[waiter.priority]
        fairer = not lower and not self._leases[waiter.client] and self._leases[request.client] > 1
        return lower > 0 or fairer

    def _leaves_its_sequence(self, request: Request, waiter: Request) -> bool:
        return request.model == waiter.model and self._gate.suits(waiter, _engine_of(request))

    def _help(self, request: Request, waiter: Request) -> None:
        if not self._leaves_its_sequence(request, waiter):
            self._helped[waiter.model, waiter.device] += 1


def _engine_of(request: Request) -> int:
    assert request.engine is not None
    return request.engine


def _park(request: Request, waiter: Request) -> Park:
    request.parking = True
    request.parkings += 1
    request.yielded = request.priority == waiter.priority
    return Park(request.key, _engine_of(request))
