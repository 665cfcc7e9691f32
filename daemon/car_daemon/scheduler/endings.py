"""The end of requests: one terminal answer for each, counted by outcome."""

from typing import Any

from car_daemon.scheduler.actions import Action, Complete, Fail, Halt
from car_daemon.scheduler.books import Books
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.table import QUEUED

# An engine may take this long to end a request at its deadline; then the request is answered with the tokens it has.
_LAST_WORD_S = 1.0


class Endings:
    """Ends requests, and removes them from the queue, the waiters and the table of requests."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def complete(self, request: Request, now: float) -> Complete:
        """Answer a request with the tokens that its engine produced."""
        self._end(request, now)
        self._books.totals.completed += 1
        return Complete(request)

    def fail(self, request: Request, reason: str, now: float, data: dict[str, Any] | None = None) -> Fail:
        """Answer a request with an error."""
        self._end(request, now)
        self._books.totals.count_error(reason)
        return Fail(request, reason, data or {})

    def abandon(self, request: Request, reason: str, now: float, data: dict[str, Any] | None = None) -> list[Action]:
        """Answer a request with an error and halt it in its engine."""
        engine = request.engine if request.state in (State.RUNNING, State.PARKED) else None
        actions: list[Action] = [self.fail(request, reason, now, data)]
        if engine is not None:
            actions.append(Halt(request.key, engine))
        return actions

    def expire(self, request: Request, now: float) -> list[Action]:
        """End a request past its limit: before its first token with an error, afterwards with the tokens it has."""
        if self._books.decisions.sink is not None:
            why = f"{request.produced} tokens after {now - request.spec.arrived:.3f} s, limit {request.limit} s"
            self._books.decisions.sink("expire", request, why)
        if request.halted_until is not None:
            return [self.complete(request, now)]
        if not request.produced or request.engine is None:
            return self.abandon(request, "deadline_exceeded", now)
        request.halted_until = now + _LAST_WORD_S
        self._books.table.limit(request)
        return [Halt(request.key, request.engine, deadline=True)]

    def stop(self, request: Request) -> None:
        """Take a running request out of the leases of its accounts."""
        self._books.parkings.stopped(request)
        self._books.waiting.returned(request)

    def _end(self, request: Request, now: float) -> None:
        books = self._books
        if request.lane is not None:
            books.waiting.remove(request)
            books.parkings.left(request)
        if request.state in QUEUED:
            books.backlog.leave(request)
        if request.leased_at is not None:
            self.stop(request)
            books.charging.settle(request)
            if request.account is not None:
                request.account.let_go()
                request.account = None
            books.rate.observe(now - request.leased_at)
        request.move(State.ENDED)
        books.table.remove(request)
