"""The scheduler: events in, actions out; after every event leases, parkings and positions."""

from collections.abc import Collection, Iterator
from typing import Any

from car_daemon.scheduler.admission import Admission, Recovery
from car_daemon.scheduler.backlog import Backlog, QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.order import WaitingRequests
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import (
    Action,
    Decisions,
    EngineFailure,
    Prompt,
    QueueProgress,
    Request,
    SendPrepare,
    SendResume,
    SendRun,
    State,
)
from car_daemon.scheduler.state import ServiceRate, SharedState
from car_daemon.scheduler.yielding import Yielding


def first_place(request: Request, backlog: Backlog) -> list[QueueProgress]:
    """Return the position of a new request that is held back, or that no engine can prepare yet."""
    if request.state is not State.ACCEPTED:
        return []
    request.position = len(backlog) + len(backlog.held_back) - 1
    return [QueueProgress(request, request.position, None)]


class Positions:
    """Reports to the requests whose `progress` is set, when their place changed.

    The first 64 requests of a target learn each of their places; one behind them learns how many there are when it
    begins to wait, and its place once it is near.
    """

    def __init__(self, waiting: WaitingRequests, rate: ServiceRate, gate: Gate) -> None:
        self._waiting = waiting
        self._rate = rate
        self._gate = gate

    def __repr__(self) -> str:
        return f"<Positions of {self._waiting.watchers.total()} requests>"

    def plan(self) -> Iterator[QueueProgress]:
        """Yield the reports about the targets that changed."""
        waiting = self._waiting
        for target in waiting.touched if waiting.watchers else ():
            if waiting.watchers[target]:
                for position, request in waiting.positions(target):
                    yield from self._report(request, position)
        for request in waiting.newcomers if waiting.watchers else ():
            if request.position is None and request in waiting:
                yield from self._report(request, waiting.count(request.model) - 1)

    def _report(self, request: Request, position: int) -> Iterator[QueueProgress]:
        if request.spec.progress and request.position != position and request.state is State.WAITING:
            request.position = position
            yield QueueProgress(request, position, self._rate.wait_ms(position, self._gate.capacity(request.model)))


class Allocator:
    """Gives free sequences to waiters after every event."""

    def __init__(self, shared: SharedState, admission: Admission, yielding: Yielding) -> None:
        self._shared = shared
        self._positions = Positions(shared.waiting, shared.rate, shared.gate)
        self._admission = admission
        self._yielding = yielding

    def allocate(self, now: float, prepared: Request | None = None) -> list[Action]:
        """Lease free sequences, let in requests held back, park for urgent waiters, report positions.

        A request that was `prepared` now begins to wait, or gets its lease at once if nothing waits.
        """
        shared = self._shared
        waiting, actions = shared.waiting, list[Action]()
        if prepared is not None:
            engine = waiting.lease_at_once(prepared, shared.gate)
            if engine is not None:
                actions += self._start(prepared, engine, now)
            else:
                shared.table.assign(prepared, None)
                waiting.add(prepared, now)
        handed = shared.parkings.handed
        if waiting.requests:
            for request, engine in waiting.leases(shared.gate, now, handed):
                actions += self._start(request, engine, now)
        handed.clear()
        if shared.backlog.held_back:
            actions += self._admission.let_in(now)
        if waiting.touched or self._is_due(now):
            if waiting.requests:
                actions += shared.parkings.plan(now)
                actions += self._positions.plan()
            else:
                shared.parkings.none_waits()
            waiting.planned()
        return actions

    def _is_due(self, now: float) -> bool:
        """Return True if parkings are to be planned now though nothing changed."""
        look = self._shared.parkings.next_look
        return look is not None and look <= now

    def _start(self, request: Request, engine: int, now: float) -> list[Action]:
        """Run or resume a request by its lease; one whose images another engine has encoded is prepared there first."""
        shared = self._shared
        if request.images_at not in (None, engine) and request.state is State.WAITING and not request.images_moved:
            return [self._move(request, engine)]
        parked = request.state is State.PARKED
        shared.backlog.leave(request)
        request.move(State.RUNNING)
        shared.table.assign(request, engine)
        if request.leased_at is None:
            request.leased_at = now
            if request.limited:
                shared.table.limit(request)
        shared.parkings.started(request, now)
        if shared.decisions.sink is not None:
            aged = "aged, " if shared.waiting.aged(request, now) else ""
            passed = f", passed by {request.passed} with resident prompts" if request.passed else ""
            why = f"{aged}waited {now - request.waits_since:.3f} s, {len(shared.waiting.requests)} still wait{passed}"
            shared.decisions.sink("resume" if parked else "lease", request, why)
        # A request alone yields to nobody.
        yields = self._yielding.begin(request, engine) if shared.gate.in_use > 1 and not request.produced else []
        if parked:
            return [SendResume(request.key, engine), *yields]
        request.prompt_share = shared.gate.prompt_share(engine)
        return [SendRun(request, engine), *yields]

    def _move(self, request: Request, engine: int) -> Action:
        """Return a lease, which would wait for the projector, until the engine has encoded the request's images.

        A second time they are encoded under the lease, so that a request cannot move for ever.
        """
        shared = self._shared
        shared.gate.release(engine, request.key)
        shared.waiting.returned(request)
        shared.parkings.left(request)
        request.images_moved = True
        request.move(State.ACCEPTED)
        request.move(State.PREPARING)
        shared.table.assign(request, engine)
        if shared.decisions.sink is not None:
            shared.decisions.sink("prepare", request, f"engine {request.images_at} encoded its images, not {engine}")
        return SendPrepare(request, engine)


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
        self._shared = shared = SharedState(gate, bounds or QueueBounds(), age_after, decisions or Decisions())
        self.gate = gate
        self.decisions = shared.decisions
        self.table = shared.table
        self.requests = shared.table.requests  # without a terminal answer, by key
        self.draining = False  # new requests are refused
        self.totals = shared.totals
        self.backlog = shared.backlog
        self.charging = shared.charging
        self.waiting = shared.waiting
        self.set_weights(weights or {})
        self._admission = Admission(shared)
        self.yielding = Yielding(gate, self.table, self.charging, self.decisions)
        self._allocator = Allocator(shared, self._admission, self.yielding)
        self._recovery = Recovery(shared, self._admission)

    def __repr__(self) -> str:
        return f"<Scheduler {self._shared!r}>"

    # Events of clients.

    def submit(self, request: Request, now: float) -> list[Action]:
        """Accept a new request, or refuse it."""
        self.totals.received += 1
        self.table.add(request)
        if self.draining:
            if self.decisions.sink is not None:
                self.decisions.sink("refuse", request, "draining")
            return [self._shared.fail(request, "draining", now)]
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
        return self._shared.abandon(request, reason, now) + self._allocator.allocate(now)

    def pause(self, key: int, now: float) -> list[Action]:
        """Park a started request until `unpause`, because its client does not read."""
        request = self.requests.get(key)
        if request is None:
            return []
        return [*self._shared.parkings.pause(request), *self._allocator.allocate(now)]

    def unpause(self, key: int, now: float) -> list[Action]:
        """Let a paused request resume in its turn."""
        request = self.requests.get(key)
        if request is not None:
            self._shared.parkings.unpause(request, now)
        return self._allocator.allocate(now)

    def expire(self, now: float) -> list[Action]:
        """End the requests past their limits: with an error, after the first token with the tokens they have."""
        actions = [action for request in self.table.expired(now) for action in self._shared.expire(request, now)]
        return actions + self._allocator.allocate(now)

    def next_deadline(self) -> float | None:
        """Return the time at which `expire` has to be called next."""
        times = (self.table.next_limit(), self._shared.parkings.next_look)
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
        actions: list[Action] = [] if request is None else [self._shared.fail(request, reason, now, data)]
        return actions + self._allocator.allocate(now)

    def advanced(self, key: int, prompt_done: int, tokens: int, cached: int = 0) -> None:
        """Count a step's progress: prompt tokens done in all, new answer tokens, prompt tokens found in the cache."""
        request = self.requests.get(key)
        if request is not None:
            computed = max(0, prompt_done - request.prompt_done - cached)
            request.prompt_done = prompt_done
            request.cached += cached
            request.produced += tokens
            if not tokens and request.engine is not None:
                self.yielding.reads(request.engine)
            self.charging.charge(request, computed * request.prompt_share + tokens)

    def stepped(self, engine: int) -> list[Action]:
        """Say which prompts of an engine yield, after all progress of its step."""
        return self.yielding.plan(engine)

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
            self._shared.stop(request)
            request.parking.requested = False
            request.move(State.PARKED)
            if not request.parking.paused:
                self.waiting.add(request, now)
        return self._allocator.allocate(now)

    def ended(self, key: int, engine: int, now: float, failure: EngineFailure | None = None) -> list[Action]:
        """Release the lease of a request whose engine is done with it, and answer it unless it was answered before."""
        self._release(engine, key)
        actions: list[Action] = []
        request = self.requests.get(key)
        if request is not None and request.engine == engine:
            if failure is None:
                actions.append(self._shared.complete(request, now))
            else:
                actions.append(self._shared.fail(request, failure.reason, now, failure.data))
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
        self.yielding.lost(engine)
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
        actions: list[Action] = [self._shared.fail(each, "model_unavailable", now, data) for each in affected]
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
        return [action for request in in_flight for action in self._shared.abandon(request, reason, now)]

    def _release(self, engine: int, key: int) -> None:
        model = self.gate.release(engine, key)
        if model is None or not self.waiting.requests:
            return
        self._shared.parkings.released(key)
        for name, engines in self.gate.opened(engine):
            self.waiting.freed(name, engines)
