"""What becomes of a request whose engine died."""

from typing import Any

from car_daemon.scheduler.backlog import Backlog
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.waiting import Waiting

# What was with two engines that died may be what killed them: nobody should try it a third time.
QUARANTINED = {"quarantined": True, "retryable": False}


def recover(request: Request, waiting: Waiting, backlog: Backlog, now: float) -> dict[str, Any] | None:
    """Put a request back, once, unless its client saw something of it; for one that is lost return its error's data."""
    request.engine = None
    if request.state is State.PREPARING and request.was_prepared:
        # It was prepared once: that is not what killed the engine.
        request.move(State.ACCEPTED)
        return None
    if request.reran:
        return QUARANTINED
    if request.sent:
        return {}
    if request.state is State.PREPARING:
        request.move(State.ACCEPTED)
        request.reran = True
        return None
    request.move(State.WAITING)
    request.start_over()
    waiting.add(request, now)
    backlog.enter(request)
    return None


def send_back(request: Request, waiting: Waiting) -> None:
    """Have a request that waits prepared anew: no engine that is up can run it, and the next one may be another."""
    waiting.remove(request)
    request.move(State.ACCEPTED)
