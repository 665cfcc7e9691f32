"""Which running work makes room for requests that find no lease."""

from collections import Counter
from collections.abc import Collection, Iterable

from car_daemon.scheduler.actions import Park
from car_daemon.scheduler.request import Client, Request, State

# After that many a request stays where it is: it has been moved around enough.
_MOST_PARKINGS = 2
_RANKS = {"latency_critical": 0, "throughput": 1}


def plan_parking(requests: Collection[Request], waiting: Iterable[Request]) -> list[Park]:
    """Return who is parked for the waiters, which come in the order in which they may have a lease.

    A waiter takes the place of work of a lower class; or, where its client holds no lease, of work of its own class
    whose client holds several. Parked requests wait for a lease too, but nobody is parked for them.
    """
    running = [request for request in requests if request.state is State.RUNNING]
    on_the_way = Counter(request.model for request in running if request.parking)
    leases = Counter(request.client for request in running if not request.parking)
    actions = []
    for waiter in waiting:
        if waiter.state is not State.WAITING:
            continue
        if on_the_way[waiter.model]:
            on_the_way[waiter.model] -= 1
            continue
        victim = min(
            (request for request in running if _may_replace(waiter, request, leases)),
            key=lambda request: (-_RANKS[request.priority], request.prompt_done + request.produced),
            default=None,
        )
        if victim is not None:
            leases[victim.client] -= 1
            leases[waiter.client] += 1
            actions.append(_park(victim, waiter))
    return actions


def _may_replace(waiter: Request, request: Request, leases: Counter[Client]) -> bool:
    if request.model != waiter.model or request.parking or request.parkings >= _MOST_PARKINGS:
        return False
    lower = _RANKS[request.priority] - _RANKS[waiter.priority]
    fairer = not lower and not leases[waiter.client] and leases[request.client] > 1
    return lower > 0 or fairer


def _park(request: Request, waiter: Request) -> Park:
    assert request.engine is not None
    request.parking = True
    request.parkings += 1
    request.yielded = request.priority == waiter.priority
    return Park(request.key, request.engine)
