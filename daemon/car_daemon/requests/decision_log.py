"""Scheduling decisions as debug events: `card --log-level debug` explains a schedule."""

from collections.abc import Callable

from car_base.host.event_log import Level, log
from car_daemon.scheduler.request import Request, Verb


def sink_at(level: Level) -> Callable[[Verb, Request, str], None] | None:
    """Return the sink of the scheduler's trace; None unless debug events are logged."""
    return _log_decision if level == "debug" else None


def _log_decision(verb: Verb, request: Request, why: str) -> None:
    # The key is a number of the daemon's own: the client's id, label and session never appear.
    facts = {"key": request.key, "model": request.model, "class": request.spec.priority, "why": why}
    event = f"schedule.{verb}"
    log.debug(event, **facts, engine=request.engine)
