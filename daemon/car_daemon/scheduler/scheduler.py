"""The scheduler: takes events, keeps every request's state, returns what is to be done."""

from typing import Any

from car_daemon.scheduler.actions import Action, Complete, Fail, Halt, Prepare, Run
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.totals import Totals
from car_daemon.scheduler.waiting import Waiting
from car_protocol.limits import QUEUE_LIMIT


class Scheduler:
    """Decides who runs. `now` is the caller's clock in seconds; actions have to be done in order."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.waiting = Waiting()
        self.totals = Totals()
        # Mutable state besides the above: requests without a terminal answer by key, the engine that serves each
        # model, and whether new requests are refused.
        self.requests: dict[int, Request] = {}
        self._engines: dict[str, int] = {}
        self.draining = False

    def submit(self, request: Request) -> list[Action]:
        """Take a new request; it is prepared at once where an engine is up."""
        self.totals.received += 1
        self.requests[request.key] = request
        if self.draining:
            return [self._fail(request, "draining")]
        if not request.wait and not self._free_now(request):
            return [self._refuse_busy(request)]
        return self._prepare(request)

    def prepared(self, key: int, now: float) -> list[Action]:
        """Take note that a request can run: it waits for a lease now."""
        request = self.requests.get(key)
        if request is None or request.state is not State.PREPARING:
            return []
        if not request.wait and not self._free_now(request):
            return [self._refuse_busy(request)]
        request.move(State.WAITING)
        request.engine = None
        self.waiting.add(request)
        return self.dispatch(now)

    def refused(self, key: int, reason: str, data: dict[str, Any], now: float) -> list[Action]:
        """Take note that an engine cannot run a request."""
        request = self.requests.get(key)
        if request is None:
            return []
        self._release(request)
        return [self._fail(request, reason, data), *self.dispatch(now)]

    def dispatch(self, now: float) -> list[Action]:
        """Lease free sequences to waiting requests; a full model does not hold up the others."""
        actions: list[Action] = []
        for request in list(self.waiting):
            engine = self.gate.try_lease(request)
            if engine is not None:
                self.waiting.remove(request)
                request.move(State.RUNNING)
                request.engine, request.leased_at = engine, now
                actions.append(Run(request, engine))
        return actions

    def advanced(self, key: int, tokens: int) -> None:
        """Take note of tokens that an engine sampled."""
        request = self.requests.get(key)
        if request is not None:
            request.produced += tokens

    def ended(self, key: int, engine: int, now: float, *, failed: bool = False) -> list[Action]:
        """Take note that an engine is done with a request, whose sequence is empty again."""
        self.gate.release(engine, key)
        actions: list[Action] = []
        request = self.requests.get(key)
        if request is not None and request.engine == engine:
            actions.append(self._fail(request, "internal_error") if failed else self._complete(request))
        return actions + self.dispatch(now)

    def cancel(self, key: int, reason: str = "cancelled") -> list[Action]:
        """End a request in any state; its sequence comes back with `ended`."""
        request = self.requests.get(key)
        if request is None:
            return []
        engine = request.engine if request.state is State.RUNNING else None
        actions: list[Action] = [self._fail(request, reason)]
        if engine is not None:
            actions.append(Halt(key, engine))
        return actions

    def expire(self, now: float) -> list[Action]:
        """End what is past its deadline: with an error before its first token, with what it has after it."""
        due = [r for r in self.requests.values() if r.expires_at is not None and r.expires_at <= now]
        actions: list[Action] = []
        for request in due:
            if request.state is State.RUNNING and request.produced:
                assert request.engine is not None
                request.overdue = True
                actions.append(Halt(request.key, request.engine, deadline=True))
            else:
                actions += self.cancel(request.key, "deadline_exceeded")
        return actions

    def next_deadline(self) -> float | None:
        """Return when `expire` has to be called next."""
        deadlines = [request.expires_at for request in self.requests.values()]
        return min((limit for limit in deadlines if limit is not None), default=None)

    def engine_of(self, model: str) -> int | None:
        """Return the engine that serves a model; None while none is up."""
        return self._engines.get(model)

    def engine_ready(self, engine: int, model: str, sequences: int, now: float) -> list[Action]:
        """Take note of an engine that serves a model from now on."""
        self.gate.declare(engine, model, sequences)
        self._engines[model] = engine
        arrived = [r for r in self.requests.values() if r.model == model and r.state is State.ACCEPTED]
        actions = [action for request in arrived for action in self._prepare(request)]
        return actions + self.dispatch(now)

    def engine_lost(self, engine: int) -> list[Action]:
        """Take note of an engine's death: nothing of which nothing was sent is lost, once."""
        self.gate.withdraw(engine)
        self._engines = {model: number for model, number in self._engines.items() if number != engine}
        affected = [request for request in self.requests.values() if request.engine == engine]
        return [action for request in affected for action in self._recover(request)]

    def model_failed(self, model: str) -> list[Action]:
        """Refuse everything that waits for a model that cannot be served."""
        affected = [request for request in self.requests.values() if request.model == model]
        return [self._fail(request, "model_unavailable") for request in affected]

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.draining = True

    def refuse_all(self, reason: str) -> list[Action]:
        """End everything that is in flight with one reason."""
        return [action for key in list(self.requests) for action in self.cancel(key, reason)]

    def _prepare(self, request: Request) -> list[Action]:
        engine = self._engines.get(request.model)
        if engine is None:
            return []
        request.move(State.PREPARING)
        request.engine = engine
        return [Prepare(request, engine)]

    def _recover(self, request: Request) -> list[Action]:
        request.engine = None
        if request.state is State.PREPARING:
            request.move(State.ACCEPTED)
        elif request.state is State.RUNNING:
            if request.sent or request.reran:
                return [self._fail(request, "engine_lost")]
            if request.overdue:
                return [self._fail(request, "deadline_exceeded")]
            request.reran = True
            request.produced = 0
            request.move(State.WAITING)
            self.waiting.add(request)
        return []

    def _free_now(self, request: Request) -> bool:
        return self.gate.available(request.model) > sum(r.model == request.model for r in self.waiting)

    def _refuse_busy(self, request: Request) -> Fail:
        facts = {"policy": "block", "queued": len(self.waiting), "queue_limit": QUEUE_LIMIT}
        return self._fail(request, "overloaded", {"why": "no free sequence", **facts})

    def _complete(self, request: Request) -> Complete:
        self._end(request)
        self.totals.completed += 1
        return Complete(request)

    def _fail(self, request: Request, reason: str, data: dict[str, Any] | None = None) -> Fail:
        self._end(request)
        self.totals.count_error(reason)
        return Fail(request, reason, data or {})

    def _release(self, request: Request) -> None:
        if request.engine is not None:
            self.gate.release(request.engine, request.key)

    def _end(self, request: Request) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
        request.move(State.ENDED)
        del self.requests[request.key]
