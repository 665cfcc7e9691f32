"""Admission: new requests, and requests of dead engines, are queued, held back, prepared, or refused."""

from typing import Any

from car_daemon.scheduler.request import Action, Fail, Request, SendPrepare, State, Verb
from car_daemon.scheduler.state import SharedState


class FullQueue:
    """Ends or sets back requests for which the queue has no place."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._backlog = shared.backlog
        self._decisions = shared.decisions

    def refuse(self, request: Request, why: str, now: float) -> Fail:
        """Refuse a request as `overloaded`."""
        if self._decisions.sink is not None:
            self._decisions.sink("refuse", request, why)
        return self._shared.fail(request, "overloaded", now, self._data(request, why))

    def drop(self, victim: Request, request: Request, now: float) -> list[Action]:
        """End a request that has left the queue for another one."""
        own = victim.path == request.path
        why = "dropped oldest" if self._backlog.bounds.overflow == "drop_oldest" and own else "above its share"
        if self._decisions.sink is not None:
            self._decisions.sink("drop", victim, f"queue full: {why}, for request {request.key}")
        return self._shared.abandon(victim, "overloaded", now, self._data(victim, why))

    def hold_back(self, request: Request, now: float) -> list[Action]:
        """Hold a new request back; refuse requests that exceed the bytes that may be held back."""
        self._backlog.hold_back(request)
        if self._decisions.sink is not None:
            self._decisions.sink("hold_back", request, f"queue full: {len(self._backlog)} requests")
        return self._shed(now)

    def displace(self, displaced: list[Request], request: Request, now: float) -> list[Action]:
        """Count a request in place of others, which are held back."""
        for each in displaced:
            self._backlog.hold_back(each)
        self._backlog.enter(request)
        self.set_back(displaced, request)
        return self._shed(now)

    def set_back(self, displaced: list[Request], request: Request) -> None:
        """Take requests that are held back from now on out of the waiters; a preparation that goes on is kept."""
        for each in displaced:
            if self._decisions.sink is not None:
                self._decisions.sink("hold_back", each, f"its account has most places: for request {request.key}")
            if each.state is State.WAITING:
                self._shared.waiting.remove(each)
                self._shared.parkings.left(each)
                each.move(State.ACCEPTED)

    def _shed(self, now: float) -> list[Action]:
        return [self.refuse(excess, "queue full", now) for excess in self._backlog.excess()]

    def _data(self, request: Request, why: str) -> dict[str, Any]:
        wait = self._shared.rate.wait_ms(len(self._backlog), self._shared.gate.capacity(request.model))
        return self._backlog.overload_data(why, wait, request)


class Admission:
    """Brings requests into the queue, or refuses them."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._table = shared.table
        self._gate = shared.gate
        self._backlog = shared.backlog
        self._waiting = shared.waiting
        self._decisions = shared.decisions
        self._full_queue = FullQueue(shared)

    def admit(self, request: Request, now: float) -> list[Action]:
        """Count a new request and have it prepared, hold it back, or refuse it.

        A request that drops or replaces another is counted only once it is prepared, because it may turn out to be
        invalid; it is refused if such requests already have as many bytes as the queue may.
        """
        spec = request.spec
        if not spec.wait and not self._free_now(request):
            return [self._full_queue.refuse(request, "no free sequence", now)]
        if self._backlog.fits(request):
            self._backlog.enter(request)
            return self.prepare(request)
        blocks = self._backlog.bounds.overflow == "block"
        if blocks and spec.queue and (displaced := self._backlog.displaced(request)) is not None:
            return self._full_queue.displace(displaced, request, now) + self.prepare(request)
        refuses = self._backlog.bounds.overflow == "drop_newest" or not spec.queue
        if refuses and self._backlog.victims(request, self._table.older(request)) is None:
            return [self._full_queue.refuse(request, "queue full", now)]
        if blocks and spec.queue:
            return self._full_queue.hold_back(request, now)
        if not self._backlog.uncounted.fits(request, self._backlog.bounds.max_bytes):
            return [self._full_queue.refuse(request, "queue full", now)]
        return self.prepare_uncounted(request, now)

    def prepared(self, request: Request, now: float) -> list[Action]:
        """Give a prepared request its place in the queue, or end it with a refusal."""
        if not request.spec.wait and not request.was_prepared and not self._free_now(request):
            return [self._full_queue.refuse(request, "no free sequence", now)]
        actions = self._make_room(request, now)
        if request.spec.supersede is not None and request.state is State.PREPARING:
            actions += self._supersede(request, now)
        return actions

    def prepare(self, request: Request) -> list[Action]:
        """Have an engine prepare an accepted request; without one it waits for the next."""
        engine = self._gate.engine_of(request.model, request.spec.device)
        if request.state is not State.ACCEPTED:
            return []
        if engine is None:
            self.await_engine(request)
            return []
        request.move(State.PREPARING)
        self._table.assign(request, engine)
        if self._decisions.sink is not None:
            self._decisions.sink("prepare", request, f"{len(self._backlog)} in the queue")
        return [SendPrepare(request, engine)]

    def await_engine(self, request: Request) -> None:
        """Have a queued request prepared by the next engine of its model."""
        self._backlog.unprepared.setdefault(request.model, {})[request.key] = request

    def prepare_all(self, model: str) -> list[Action]:
        """Have an engine that became ready prepare the queued requests of its model."""
        if self._gate.engine_of(model) is None:
            return []
        unprepared = self._backlog.unprepared.pop(model, {})
        return [action for _, request in sorted(unprepared.items()) for action in self.prepare(request)]

    def prepare_uncounted(self, request: Request, now: float) -> list[Action]:
        """Have a request prepared before it is counted; without an engine it is counted now and waits for one."""
        if request.key in self._backlog.held_back:
            return []
        if self._gate.engine_of(request.model, request.spec.device) is not None:
            if request.key not in self._backlog.counted and request.leased_at is None:
                self._backlog.uncounted.add(request)
            return self.prepare(request)
        actions = self._make_room(request, now)
        return actions + self.prepare(request)

    def let_in(self, now: float) -> list[Action]:
        """Prepare the requests that were held back and enter the queue now."""
        actions: list[Action] = []
        for request, displaced in self._backlog.let_in(now, self._waiting.age_after):
            if self._decisions.sink is not None:
                self._decisions.sink("let_in", request, f"{len(self._backlog.held_back)} are still held back")
            self._full_queue.set_back(displaced, request)
            actions += self.prepare(request)
        return actions

    def _make_room(self, request: Request, now: float) -> list[Action]:
        """Count a request unless it is counted: in place of requests that it supersedes or the policy drops.

        Work that came back from a dead engine has had its place, and holds none while it waits for the next engine:
        else a model without an engine would keep the newcomers of all other models out.
        """
        if request.key in self._backlog.counted or request.leased_at is not None:
            return []
        victims = self._backlog.victims(request, self._table.older(request))
        displaces = self._backlog.bounds.overflow == "block" and request.spec.queue
        if victims is None and displaces and (displaced := self._backlog.displaced(request)) is not None:
            return self._full_queue.displace(displaced, request, now)
        if victims is None:
            return [self._full_queue.refuse(request, "queue full", now)]
        actions = self._supersede(request, now)
        for victim in victims:
            self._backlog.leave(victim)
        self._backlog.enter(request)
        for victim in victims:
            actions += self._full_queue.drop(victim, request, now)
        return actions

    def _supersede(self, request: Request, now: float) -> list[Action]:
        """Cancel the older requests of the same `supersede` key in any state: an older one may be prepared later."""
        actions: list[Action] = []
        for older in self._table.older(request):
            if self._decisions.sink is not None:
                self._decisions.sink("supersede", older, f"by request {request.key}")
            actions += self._shared.abandon(older, "cancelled", now, {"superseded": True})
        return actions

    def _free_now(self, request: Request) -> bool:
        if self._gate.engine_of(request.model, request.spec.device) is None:
            return False
        free = self._gate.available(request.model, request.spec.device)
        return free > self._waiting.count(request.model) + request.spec.behind


# A request present at two engine deaths may have caused them: it is not retried.
QUARANTINED = {"quarantined": True, "retryable": False}


class Recovery:
    """Handles engine deaths: a request is lost only after it was retried, or once part of its answer was sent."""

    def __init__(self, shared: SharedState, admission: Admission) -> None:
        self._shared = shared
        self._admission = admission

    def recover(
        self, model: str | None, affected: list[Request], now: float, suspect: int | None = None
    ) -> list[Action]:
        """Put the requests of a dead engine back or answer them; send back waiters that no other engine can run.

        The death counts against the `suspect` alone, and without a suspect against every request.
        """
        actions: list[Action] = []
        for request in affected:
            if request.halted_until is not None:
                actions.append(self._shared.complete(request, now))
                continue
            lost = self._put_back(request, now, innocent=suspect is not None and request.key != suspect)
            self._shared.table.assign(request, None)
            if lost is not None:
                actions.append(self._shared.fail(request, "engine_lost", now, lost))
        for request in affected:
            if request.state is State.ACCEPTED:
                actions += self._admission.prepare_uncounted(request, now)
        if model is not None:
            self._send_back(model)
        return actions

    def _send_back(self, model: str) -> None:
        """Have the waiters that no engine can run prepared anew by the next: its sequences or its file may differ."""
        shared = self._shared
        for request in shared.waiting.of_model(model):
            if not shared.gate.serves(model, request.spec.device):
                shared.waiting.remove(request)
                shared.parkings.left(request)
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
            self._shared.stop(request)
            if request.kind is not None:
                self._shared.waiting.remove(request)
            request.move(State.WAITING)
            request.start_over()
            self._shared.waiting.add(request, now)
        return None

    def _report(self, verb: Verb, request: Request, why: str) -> None:
        if self._shared.decisions.sink is not None:
            self._shared.decisions.sink(verb, request, why)
