"""Which running work makes room for requests that cannot wait."""

from collections.abc import Collection, Iterable

from car_daemon.scheduler.actions import Park
from car_daemon.scheduler.request import Request, State

# After that many a request stays where it is: it has been moved around enough.
_MOST_PARKINGS = 2


def plan_parking(requests: Collection[Request], waiting: Iterable[Request]) -> list[Park]:
    """Return who is parked: one running `throughput` request for each latency_critical one without a lease."""
    urgent = [r for r in waiting if r.priority == "latency_critical" and r.state is State.WAITING]
    actions: list[Park] = []
    for model in {request.model for request in urgent}:
        running = [r for r in requests if r.model == model and r.state is State.RUNNING]
        short = sum(r.model == model for r in urgent) - sum(r.parking for r in running)
        victims = sorted(filter(_may_park, running), key=lambda request: request.prompt_done + request.produced)
        actions += [_park(victim) for victim in victims[: max(0, short)]]
    return actions


def _may_park(request: Request) -> bool:
    return request.priority == "throughput" and not request.parking and request.parkings < _MOST_PARKINGS


def _park(request: Request) -> Park:
    assert request.engine is not None
    request.parking = True
    request.parkings += 1
    return Park(request.key, request.engine)
