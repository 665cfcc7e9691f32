"""Which running work makes room for requests that find no lease, and work that is held for a reason of its own."""

from collections import Counter
from collections.abc import Callable, Collection

from car_daemon.scheduler.actions import Park
from car_daemon.scheduler.request import RANKS, Client, Request, State
from car_daemon.scheduler.waiting import Waiting

# After that many a request stays where it is: it has been moved around enough.
_MOST_PARKINGS = 2


# Tells whether the first request could have a lease once the second gave up its own.
MakesRoom = Callable[[Request, Request], bool]


def plan_parking(leased: Collection[Request], waiting: Waiting, makes_room: MakesRoom, now: float) -> list[Park]:
    """Return which of the `leased` requests are parked for waiters, in the order in which these may have a lease.

    A waiter takes the place of work of a lower class; or, where its client holds no lease, of work of its own class
    whose client holds several. Parked requests wait for a lease too, but nobody is parked for them.
    """
    running = [request for request in leased if request.state is State.RUNNING]
    leases = Counter(request.client for request in running if not request.parking)
    if not any(waiter.state is State.WAITING and _hopeful(waiter, running, leases) for waiter in waiting):
        return []
    on_the_way = [request for request in running if request.parking]
    actions = []
    for waiter in waiting.ordered(now):
        if waiter.state is not State.WAITING:
            continue
        leaving = next((request for request in on_the_way if makes_room(waiter, request)), None)
        if leaving is not None:
            on_the_way.remove(leaving)
        elif (victim := _victim(waiter, running, leases, makes_room)) is not None:
            leases[victim.client] -= 1
            leases[waiter.client] += 1
            actions.append(_park(victim, waiter))
    return actions


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


def release(request: Request, waiting: Waiting) -> None:
    """Let a request that was held have a lease again."""
    if request.held and request.state is State.PARKED:
        waiting.add(request)
    request.held = False


def _hopeful(waiter: Request, running: list[Request], leases: Counter[Client]) -> bool:
    """Tell in short whether anybody could be parked for a waiter: most waiters have no such hope."""
    if waiter.priority == "latency_critical" and any(request.priority == "throughput" for request in running):
        return True
    return not leases[waiter.client] and max(leases.values(), default=0) > 1


def _victim(waiter: Request, running: list[Request], leases: Counter[Client], makes_room: MakesRoom) -> Request | None:
    """Return who is parked for a waiter: of the lowest class, with the fewest tokens in its cells."""
    return min(
        (each for each in running if _may_replace(waiter, each, leases) and makes_room(waiter, each)),
        key=lambda request: (-RANKS[request.priority], request.prompt_done + request.produced),
        default=None,
    )


def _may_replace(waiter: Request, request: Request, leases: Counter[Client]) -> bool:
    if request.parking or request.parkings >= _MOST_PARKINGS:
        return False
    lower = RANKS[request.priority] - RANKS[waiter.priority]
    fairer = not lower and not leases[waiter.client] and leases[request.client] > 1
    return lower > 0 or fairer


def _engine_of(request: Request) -> int:
    assert request.engine is not None
    return request.engine


def _park(request: Request, waiter: Request) -> Park:
    request.parking = True
    request.parkings += 1
    request.yielded = request.priority == waiter.priority
    return Park(request.key, _engine_of(request))
