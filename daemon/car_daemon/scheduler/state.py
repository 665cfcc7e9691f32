"""The state that the scheduler's parts share: open requests, counts, and what a request's end changes in them."""

from typing import Any, Literal

from car_daemon.scheduler.backlog import Backlog, QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.order import Charging, WaitingRequests
from car_daemon.scheduler.parking import Parkings
from car_daemon.scheduler.request import (
    QUEUED,
    Action,
    Complete,
    Decisions,
    Fail,
    Request,
    RequestTable,
    SendHalt,
    State,
)

# An engine may take this long to end a request at its deadline; then the request is answered with the tokens it has.
_LAST_WORD_S = 1.0

# The reasons that count as failures; every other reason but `cancelled` is a rejection.
_FAILED = frozenset({"deadline_exceeded", "engine_lost", "slow_reader", "internal_error"})
Outcome = Literal["completed", "failed", "cancelled", "rejected"]


def outcome_of(reason: str) -> Outcome:
    """Return the outcome of a request that ended with an error."""
    if reason == "cancelled":
        return "cancelled"
    return "failed" if reason in _FAILED else "rejected"


class OutcomeTotals:
    """Requests by outcome: received = completed + failed + cancelled + rejected + in flight."""

    def __init__(self) -> None:
        self.received = 0
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.rejected = 0

    def __repr__(self) -> str:
        return f"<OutcomeTotals {self.received} received, {self.in_flight} in flight>"

    @property
    def in_flight(self) -> int:
        """Requests without a terminal answer."""
        return self.received - self.completed - self.failed - self.cancelled - self.rejected

    def refuse(self) -> None:
        """Count a request that was refused before it reached the scheduler."""
        self.received += 1
        self.rejected += 1

    def count_error(self, reason: str) -> None:
        """Count a request that ended with an error."""
        outcome = outcome_of(reason)
        setattr(self, outcome, getattr(self, outcome) + 1)


# A new sample's part in the moving mean.
_WEIGHT = 0.2


class ServiceRate:
    """Moving mean of the seconds from a request's first lease to its end."""

    def __init__(self) -> None:
        self._mean: float | None = None  # None before the first request ended

    def __repr__(self) -> str:
        return f"<ServiceRate {self._mean} s>"

    def observe(self, seconds: float) -> None:
        """Add a sample."""
        self._mean = seconds if self._mean is None else self._mean + _WEIGHT * (seconds - self._mean)

    def wait_ms(self, position: int, capacity: int) -> int | None:
        """Return the ms until the request at a position (0 is next) may start; None before the first sample."""
        return None if self._mean is None else round(self._mean * (position + 1) / capacity * 1000)


class SharedState:
    """Requests, leases, places, waiters, charges and parkings; the end of a request changes all six."""

    def __init__(self, gate: Gate, bounds: QueueBounds, age_after: float, decisions: Decisions) -> None:
        self.gate = gate
        self.decisions = decisions
        self.table = RequestTable()
        self.totals = OutcomeTotals()
        self.rate = ServiceRate()
        self.charging = Charging()
        self.backlog = Backlog(bounds, self.charging)
        self.waiting = WaitingRequests(self.charging, age_after)
        self.parkings = Parkings(self.waiting, gate, decisions)

    def __repr__(self) -> str:
        return f"<SharedState {self.totals!r}, {self.backlog!r}, {self.waiting!r}, {self.gate!r}>"

    def complete(self, request: Request, now: float) -> Complete:
        """Answer a request with the tokens that its engine produced."""
        self._end(request, now)
        self.totals.completed += 1
        return Complete(request)

    def fail(self, request: Request, reason: str, now: float, data: dict[str, Any] | None = None) -> Fail:
        """Answer a request with an error."""
        self._end(request, now)
        self.totals.count_error(reason)
        return Fail(request, reason, data or {})

    def abandon(self, request: Request, reason: str, now: float, data: dict[str, Any] | None = None) -> list[Action]:
        """Answer a request with an error and halt it in its engine."""
        engine = request.engine if request.state in (State.RUNNING, State.PARKED) else None
        if reason in ("cancelled", "deadline_exceeded"):
            self.charging.cancelled(request)
        actions: list[Action] = [self.fail(request, reason, now, data)]
        if engine is not None:
            actions.append(SendHalt(request.key, engine))
        return actions

    def expire(self, request: Request, now: float) -> list[Action]:
        """End a request past its limit: before its first token with an error, afterwards with the tokens it has."""
        if self.decisions.sink is not None:
            why = f"{request.produced} tokens after {now - request.spec.arrived:.3f} s, limit {request.limit} s"
            self.decisions.sink("expire", request, why)
        if request.halted_until is not None:
            return [self.complete(request, now)]
        if not request.produced or request.engine is None:
            return self.abandon(request, "deadline_exceeded", now)
        request.halted_until = now + _LAST_WORD_S
        self.table.limit(request)
        return [SendHalt(request.key, request.engine, deadline=True)]

    def stop(self, request: Request) -> None:
        """Take a running request out of the leases of its accounts."""
        self.parkings.stopped(request)
        self.waiting.returned(request)

    def _end(self, request: Request, now: float) -> None:
        if request.kind is not None:
            self.waiting.remove(request)
            self.parkings.left(request)
        if request.state in QUEUED:
            self.backlog.leave(request)
        if request.leased_at is not None:
            self.stop(request)
            self.rate.observe(now - request.leased_at)
        request.move(State.ENDED)
        self.table.remove(request)
