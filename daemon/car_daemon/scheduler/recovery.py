"""Recovery: the requests of a dead engine run again once, or are answered."""

from typing import Any

from car_daemon.scheduler.actions import Action, Verb
from car_daemon.scheduler.admission import Admission
from car_daemon.scheduler.books import Books
from car_daemon.scheduler.endings import Endings
from car_daemon.scheduler.request import Request, State

# A request present at two engine deaths may have caused them: it is not retried.
QUARANTINED = {"quarantined": True, "retryable": False}


class Recovery:
    """Handles engine deaths: a request is lost only after it was retried, or once part of its answer was sent."""

    def __init__(self, books: Books, admission: Admission, endings: Endings) -> None:
        self._books = books
        self._admission = admission
        self._endings = endings

    def recover(
        self, model: str | None, affected: list[Request], now: float, suspect: int | None = None
    ) -> list[Action]:
        """Put the requests of a dead engine back or answer them; send back waiters that no other engine can run.

        The death counts against the `suspect` alone, and where there is none against every request.
        """
        actions: list[Action] = []
        for request in affected:
            if request.halted_until is not None:
                actions.append(self._endings.complete(request, now))
                continue
            lost = self._put_back(request, now, innocent=suspect is not None and request.key != suspect)
            self._books.table.assign(request, None)
            if lost is not None:
                actions.append(self._endings.fail(request, "engine_lost", now, lost))
        for request in affected:
            if request.state is State.ACCEPTED:
                actions += self._admission.prepare_uncounted(request, now)
        if model is not None:
            self._send_back(model)
        return actions

    def _send_back(self, model: str) -> None:
        """Have the waiters that no engine can run prepared anew by the next: its sequences or its file may differ."""
        books = self._books
        for lane in books.waiting.lanes_of(model):
            if books.gate.serves(model, lane.target.device):
                continue
            for key in sorted(lane.leaves):
                request = books.waiting.requests[key]
                books.waiting.remove(request)
                books.parkings.left(request)
                request.move(State.ACCEPTED)
                self._admission.await_engine(request)

    def _put_back(self, request: Request, now: float, *, innocent: bool) -> dict[str, Any] | None:
        """Return a request to the queue; for a lost one return the data of its error."""
        preparing = request.state is State.PREPARING
        if preparing and innocent:
            self._report("retry", request, "its engine hung at another request")
            request.move(State.ACCEPTED)
        elif preparing and request.was_prepared and request.images_at is None:
            self._report("retry", request, "it was prepared before, so it did not cause the death")
            request.move(State.ACCEPTED)
        elif request.retried and not innocent:
            self._report("lose", request, "quarantined: a second engine died with it")
            return QUARANTINED
        elif request.sent:
            self._report("lose", request, "part of its answer was sent")
            return {}
        elif preparing:
            self._report("retry", request, "its engine died while preparing it")
            request.move(State.ACCEPTED)
            request.retried = True
        else:
            self._report("retry", request, "its engine died before any of its answer was sent")
            self._endings.stop(request)
            self._books.charging.settle(request)
            if request.lane is not None:
                self._books.waiting.remove(request)
            request.move(State.WAITING)
            request.start_over()
            self._books.waiting.add(request, now)
            self._books.backlog.enter(request)
        return None

    def _report(self, verb: Verb, request: Request, why: str) -> None:
        if self._books.decisions.sink is not None:
            self._books.decisions.sink(verb, request, why)
