"""What waiters that asked for it are told: their position and how long it will take."""

from car_daemon.scheduler.actions import Progress
from car_daemon.scheduler.backlog import Backlog
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.rate import ServiceRate
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.waiting import Waiting


def first_place(request: Request, backlog: Backlog) -> list[Progress]:
    """Return where a request stands that has just come and is held back, or has no engine to prepare it."""
    if not request.progress or request.state is not State.ACCEPTED:
        return []
    request.position = len(backlog) + backlog.held - 1
    return [Progress(request, request.position, None)]


def plan_progress(waiting: Waiting, rate: ServiceRate, gate: Gate, now: float) -> list[Progress]:
    """Return what changed for whom since they were told last."""
    if not any(request.progress for request in waiting):
        return []
    actions = []
    for position, request in enumerate(waiting.ordered(now)):
        if request.progress and request.position != position and request.state is State.WAITING:
            request.position = position
            wait = rate.wait(position, gate.capacity(request.model))
            actions.append(Progress(request, position, None if wait is None else round(wait * 1000)))
    return actions
