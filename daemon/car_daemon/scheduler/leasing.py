"""Who of those that wait has a lease next."""

from collections.abc import Iterator

from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Request, Target
from car_daemon.scheduler.waiting import Waiting


def leases(waiting: Waiting, gate: Gate, now: float) -> Iterator[tuple[Request, int]]:
    """Yield who has a lease now, and its engine; who took one has to leave `waiting` before the next.

    A full model or device does not hold up the others.
    """
    full: set[Target] = set()
    while not gate.exhausted and (request := waiting.next(now, full)) is not None:
        engine = gate.try_lease(request)
        if engine is None:
            full.add(request.target)
        else:
            yield request, engine
