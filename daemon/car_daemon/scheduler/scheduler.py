"""The scheduler's façade: events in, actions out."""

from collections.abc import Collection
from typing import Any

from car_daemon.scheduler.actions import Action, Decisions
from car_daemon.scheduler.admission import Admission
from car_daemon.scheduler.allocator import Allocator
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.books import Books
from car_daemon.scheduler.endings import Endings
from car_daemon.scheduler.eta import first_place
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.recovery import Recovery
from car_daemon.scheduler.request import Failure, Prompt, Request, State
from car_daemon.scheduler.routing.replicas import EngineOffer

DEFAULT_AGE_AFTER_S = 30.0


class Scheduler:
    """Applies events and returns actions, to be carried out in order; `now` is the caller's clock in seconds."""

    def __init__(
        self,
        gate: Gate,
        bounds: QueueBounds | None = None,
        *,
        age_after: float = DEFAULT_AGE_AFTER_S,
        weights: dict[int, float] | None = None,
        decisions: Decisions | None = None,
    ) -> None:
        self._books = books = Books(gate, bounds or QueueBounds(), age_after, decisions or Decisions())
        self.gate = gate
        self.decisions = books.decisions
        self.table = books.table
        self.requests = books.table.requests  # without a terminal answer, by key
        self.draining = False  # new requests are refused
        self.totals = books.totals
        self.backlog = books.backlog
        self.charging = books.charging
        self.waiting = books.waiting
        self.set_weights(weights or {})
        self._endings = Endings(books)
        self._admission = Admission(books, self._endings)
        self._allocator = Allocator(books, self._admission)
        self._recovery = Recovery(books, self._admission, self._endings)

    def __repr__(self) -> str:
        return f"<Scheduler {self._books!r}>"

    # Events of clients.

    def submit(self, request: Request, now: float) -> list[Action]:
        """Accept a new request, or refuse it."""
        self.totals.received += 1
        self.table.add(request)
        if self.draining:
            if self.decisions.sink is not None:
                self.decisions.sink("refuse", request, "draining")
            return [self._endings.fail(request, "draining", now)]
        actions = self._admission.admit(request, now)
        if request.state is State.ENDED:
            return actions
        if request.spec.progress:
            actions += first_place(request, self.backlog)
        return actions + self._allocator.allocate(now)

    def cancel(self, key: int, now: float, reason: str = "cancelled") -> list[Action]:
        """End a request in any state; its lease is released by `ended`."""
        request = self.requests.get(key)
        if request is None:
            return []
        return self._endings.abandon(request, reason, now) + self._allocator.allocate(now)

    def pause(self, key: int, now: float) -> list[Action]:
        """Park a started request until `unpause`, because its client does not read."""
        request = self.requests.get(key)
        if request is None:
            return []
        return [*self._books.parkings.pause(request), *self._allocator.allocate(now)]

    def unpause(self, key: int, now: float) -> list[Action]:
        """Let a paused request resume in its turn."""
        request = self.requests.get(key)
        if request is not None:
            self._books.parkings.unpause(request, now)
        return self._allocator.allocate(now)

    def expire(self, now: float) -> list[Action]:
        """End the requests past their limits: with an error, after the first token with the tokens they have.

        Positions that are owed by now are reported.
        """
        actions = [action for request in self.table.expired(now) for action in self._endings.expire(request, now)]
        return actions + self._allocator.allocate(now)

    def next_deadline(self) -> float | None:
        """Return the time at which `expire` has to be called next."""
        times = (self.table.next_limit(), self._allocator.positions.next_look, self._books.parkings.next_look)
        return min((time for time in times if time is not None), default=None)

    # Events of engines.

    def prepared(self, key: int, prompt: Prompt, now: float) -> list[Action]:
        """Queue a request for a lease, now that its prompt is prepared."""
        request = self.requests.get(key)
        if request is None or request.state is not State.PREPARING:
            return []
        if request.key in self.backlog.held_back:
            # It gave up its place meanwhile, and is prepared again when it gets another.
            request.prompt = prompt
            self.table.assign(request, None)
            request.move(State.ACCEPTED)
            return self._allocator.allocate(now)
        actions = self._admission.prepared(request, now)
        if request.state is State.PREPARING:
            request.prompt = prompt
            request.images_at = request.engine if prompt.images else None
            request.move(State.WAITING)
            return actions + self._allocator.allocate(now, request)
        return actions + self._allocator.allocate(now)

    def refused(self, key: int, engine: int, reason: str, data: dict[str, Any], now: float) -> list[Action]:
        """Answer a request that its engine cannot run."""
        self._release(engine, key)
        request = self.requests.get(key)
        actions: list[Action] = [] if request is None else [self._endings.fail(request, reason, now, data)]
        return actions + self._allocator.allocate(now)

    def advanced(self, key: int, prompt_done: int, tokens: int, now: float, cached: int = 0) -> None:
        """Count a step's progress: prompt tokens done in all, new answer tokens, prompt tokens found in the cache."""
        request = self.requests.get(key)
        if request is not None:
            request.prompt_done = prompt_done
            request.produced += tokens
            self.charging.advanced(request, cached)

    def resident(self, engine: int, keys: list[int]) -> None:
        """Prefer, among waiting requests that fairness ranks alike, these, until the next lease of their engine."""
        model, requests = self.gate.model_of(engine), self.waiting.requests
        known = (key for key in keys if key in requests and requests[key].model == model)
        self.waiting.cached.announce(engine, known)

    def parked(self, key: int, engine: int, now: float) -> list[Action]:
        """Release the lease of a request whose cells its engine saved; it waits for another."""
        self._release(engine, key)
        request = self.requests.get(key)
        if request is not None and request.engine == engine and request.state is State.RUNNING:
            self._endings.stop(request)
            request.parking.requested = False
            request.move(State.PARKED)
            if not request.parking.paused:
                self.waiting.add(request, now)
        return self._allocator.allocate(now)

    def ended(self, key: int, engine: int, now: float, failure: Failure | None = None) -> list[Action]:
        """Release the lease of a request whose engine is done with it, and answer it unless it was answered before."""
        self._release(engine, key)
        actions: list[Action] = []
        request = self.requests.get(key)
        if request is not None and request.engine == engine:
            if failure is None:
                actions.append(self._endings.complete(request, now))
            else:
                actions.append(self._endings.fail(request, failure.reason, now, failure.data))
        return actions + self._allocator.allocate(now)

    def engine_ready(self, engine: int, offer: EngineOffer, now: float) -> list[Action]:
        """Lease an engine's sequences from now on, and have it prepare the queued requests of its model."""
        self.gate.declare(engine, offer)
        self.waiting.freed(offer.model, None)
        actions = self._admission.prepare_all(offer.model)
        return actions + self._allocator.allocate(now)

    def engine_lost(self, engine: int, now: float, suspect: int | None = None) -> list[Action]:
        """Recover the requests of a dead engine; a `suspect` is the one request that it hung at."""
        model = self.gate.model_of(engine)
        self.gate.withdraw(engine)
        self.waiting.cached.leased(engine)
        actions = self._recovery.recover(model, self.table.of_engine(engine), now, suspect)
        # Of all models, because the leases that it had count under the limit of a machine.
        self.waiting.freed_all()
        return actions + self._allocator.allocate(now)

    def model_failed(
        self, model: str, now: float, data: dict[str, Any] | None = None, left: Collection[str] = ()
    ) -> list[Action]:
        """Refuse the requests of a model that cannot be served, except on the devices that are `left`."""
        affected = self.table.unserved(model, left)
        actions: list[Action] = [self._endings.fail(each, "model_unavailable", now, data) for each in affected]
        return actions + self._allocator.allocate(now)

    # Events of the daemon.

    def allocate(self, now: float) -> list[Action]:
        """Start the requests that may run after a change of capacity."""
        self.waiting.freed_all()
        return self._allocator.allocate(now)

    def set_weights(self, weights: dict[int, float]) -> None:
        """Share service and queue by these weights of uids from now on; others have 1."""
        self.charging.set_weights(weights)
        self.backlog.set_weights()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.draining = True

    def refuse_all(self, reason: str, now: float) -> list[Action]:
        """End everything in flight with one reason."""
        in_flight = list(self.requests.values())
        return [action for request in in_flight for action in self._endings.abandon(request, reason, now)]

    def _release(self, engine: int, key: int) -> None:
        model = self.gate.release(engine, key)
        if model is None or not self.waiting.requests:
            return
        for name, engines in self.gate.opened(engine):
            self.waiting.freed(name, engines)
