"""The scheduler: takes events, keeps every request's state, returns what is to be done."""

from collections.abc import Collection
from typing import Any

from car_daemon.devices import is_on
from car_daemon.scheduler.actions import Action, Complete, Fail, Halt, Prepare, Resume, Run
from car_daemon.scheduler.backlog import Backlog, QueueBounds
from car_daemon.scheduler.fairness import Fairness
from car_daemon.scheduler.gate import Gate, Offer
from car_daemon.scheduler.leasing import leases
from car_daemon.scheduler.parking import hold, plan_parking, release
from car_daemon.scheduler.progress import first_place, plan_progress
from car_daemon.scheduler.rate import ServiceRate
from car_daemon.scheduler.recovery import recover, send_back
from car_daemon.scheduler.request import Failure, Request, State
from car_daemon.scheduler.totals import Totals
from car_daemon.scheduler.waiting import Waiting

DEFAULT_AGE_AFTER_S = 30.0
# So long an engine may take to end a request at its deadline; then it is answered with what came of it.
_LAST_WORD_S = 1.0


class Scheduler:
    """Decides who runs. `now` is the caller's clock in seconds; actions have to be done in order."""

    def __init__(
        self, gate: Gate, bounds: QueueBounds | None = None, *, age_after: float = DEFAULT_AGE_AFTER_S
    ) -> None:
        self.gate = gate
        self.backlog = Backlog(bounds or QueueBounds())
        self.fairness = Fairness()
        self.waiting = Waiting(self.fairness, age_after)
        self.rate = ServiceRate()
        self.totals = Totals()
        # Mutable state besides the above: requests without a terminal answer by key, and whether new ones are refused.
        self.requests: dict[int, Request] = {}
        self.draining = False

    # What clients want.

    def submit(self, request: Request, now: float) -> list[Action]:
        """Take a new request; it is prepared at once where an engine is up and the queue has room."""
        self.totals.received += 1
        self.requests[request.key] = request
        refusal = self._refusal(request, now)
        if refusal is not None:
            return [refusal]
        return [*self._enter(request, now), *first_place(request, self.backlog), *self._settle(now)]

    def cancel(self, key: int, now: float, reason: str = "cancelled") -> list[Action]:
        """End a request in any state; its sequence comes back with `ended`."""
        request = self.requests.get(key)
        if request is None:
            return []
        return [*self._abandon(request, now, reason), *self._settle(now)]

    def hold(self, key: int, now: float) -> list[Action]:
        """Set a request that was started aside until `release`: nobody takes what it brings."""
        request = self.requests.get(key)
        return [] if request is None else [*hold(request, self.waiting), *self._settle(now)]

    def release(self, key: int, now: float) -> list[Action]:
        """Let a request that was held go on when its turn comes."""
        request = self.requests.get(key)
        if request is not None:
            release(request, self.waiting, now)
        return self._settle(now)

    def expire(self, now: float) -> list[Action]:
        """End what is past its deadline: with an error before its first token, with what it has after it."""
        due = [r for r in self.requests.values() if r.expires_at is not None and r.expires_at <= now]
        return [*(action for request in due for action in self._expire(request, now)), *self._settle(now)]

    def next_deadline(self) -> float | None:
        """Return when `expire` has to be called next."""
        deadlines = [request.expires_at for request in self.requests.values()]
        return min((limit for limit in deadlines if limit is not None), default=None)

    # What engines did.

    def prepared(
        self, key: int, prompt_tokens: int, max_tokens: int, now: float, blocks: tuple[int, ...] = ()
    ) -> list[Action]:
        """Take note that a request can run: it waits for a lease now."""
        request = self.requests.get(key)
        if request is None or request.state is not State.PREPARING:
            return []
        if not request.wait and not request.was_prepared and not self._free_now(request):
            return [self._overloaded(request, "no free sequence", now), *self._settle(now)]
        actions = self._make_room(request, now)
        if request.state is State.PREPARING:
            actions += self._supersede(request, now)
            request.prompt_tokens, request.max_tokens, request.blocks = prompt_tokens, max_tokens, blocks
            request.move(State.WAITING)
            request.engine = None
            self.waiting.add(request, now)
        return actions + self._settle(now)

    def refused(self, key: int, engine: int, reason: str, data: dict[str, Any], now: float) -> list[Action]:
        """Take note that an engine cannot run a request."""
        self.gate.release(engine, key)
        request = self.requests.get(key)
        ended = [] if request is None else [self._fail(request, reason, now, data)]
        return [*ended, *self._settle(now)]

    def advanced(self, key: int, prompt_done: int, tokens: int, now: float, cached: int = 0) -> None:
        """Take note of prompt tokens done in all, and of answer tokens sampled and prompt tokens found cached now."""
        request = self.requests.get(key)
        if request is None:
            return
        request.prompt_done = prompt_done
        request.produced += tokens
        self.fairness.advanced(request, tokens, cached, now)

    def parked(self, key: int, engine: int, now: float) -> list[Action]:
        """Take note that an engine set a request aside: its lease is free."""
        self.gate.release(engine, key)
        request = self.requests.get(key)
        if request is not None and request.engine == engine and request.state is State.RUNNING:
            request.parking = False
            request.move(State.PARKED)
            if not request.held:
                self.waiting.add(request, now)
        return self._settle(now)

    def ended(self, key: int, engine: int, now: float, failure: Failure | None = None) -> list[Action]:
        """Take note that an engine is done with a request, whose sequence is empty again."""
        self.gate.release(engine, key)
        request = self.requests.get(key)
        if request is None or request.engine != engine:
            return self._settle(now)
        if failure is None:
            return [self._complete(request, now), *self._settle(now)]
        return [self._fail(request, failure.reason, now, failure.data), *self._settle(now)]

    def engine_ready(self, engine: int, offer: Offer, now: float) -> list[Action]:
        """Take note of an engine that serves a model from now on."""
        self.gate.declare(engine, offer)
        arrived = [r for r in self.requests.values() if r.model == offer.model and r in self.backlog]
        return [*(action for request in arrived for action in self._prepare(request)), *self._settle(now)]

    def engine_lost(self, engine: int, now: float) -> list[Action]:
        """Take note of an engine's death: nothing of which nothing was sent is lost, once."""
        self.gate.withdraw(engine)
        affected = [request for request in self.requests.values() if request.engine == engine]
        actions = [action for request in affected for action in self._recover(request, now)]
        actions += [action for r in affected if r.state is State.ACCEPTED for action in self._prepare_uncounted(r, now)]
        for request in [each for each in self.waiting if not self.gate.serves(each)]:
            send_back(request, self.waiting)
        return actions + self._settle(now)

    def model_failed(
        self, model: str, now: float, data: dict[str, Any] | None = None, left: Collection[str] = ()
    ) -> list[Action]:
        """Refuse what waits for a model that cannot be served, or only on the devices that are `left`."""
        asked = [request for request in self.requests.values() if request.model == model]
        affected = [request for request in asked if not any(is_on(device, request.device) for device in left)]
        return [*(self._fail(request, "model_unavailable", now, data) for request in affected), *self._settle(now)]

    # What the daemon wants.

    def dispatch(self, now: float) -> list[Action]:
        """Start what may run, after capacity changed."""
        return self._settle(now)

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.draining = True

    def refuse_all(self, reason: str, now: float) -> list[Action]:
        """End everything that is in flight with one reason."""
        in_flight = list(self.requests.values())
        return [action for request in in_flight for action in self._abandon(request, now, reason)]

    # Into the queue.

    def _refusal(self, request: Request, now: float) -> Fail | None:
        """Refuse what may not even wait."""
        if self.draining:
            return self._fail(request, "draining", now)
        if not request.wait and not self._free_now(request):
            return self._overloaded(request, "no free sequence", now)
        refuses = self.backlog.bounds.overflow == "drop_newest" or not request.queue
        if refuses and not self.backlog.fits(request, self._superseded(request)):
            return self._overloaded(request, "queue full", now)
        return None

    def _enter(self, request: Request, now: float) -> list[Action]:
        """Count a request, or hold it back; one that takes the place of another does so only once it is prepared."""
        if self.backlog.fits(request):
            self.backlog.enter(request)
        elif self.backlog.bounds.overflow == "block" and request.queue:
            self.backlog.hold(request)
            return [self._overloaded(excess, "queue full", now) for excess in self.backlog.excess()]
        else:
            return self._prepare_uncounted(request, now)
        return self._prepare(request)

    def _make_room(self, request: Request, now: float) -> list[Action]:
        """Count a request that is not counted yet: in place of those that it supersedes, or drop others for it."""
        if request in self.backlog:
            return []
        victims = self.backlog.victims(request, self._superseded(request))
        if victims is None:
            return [self._overloaded(request, "queue full", now)]
        actions = self._supersede(request, now)
        for victim in victims:
            actions += self._abandon(victim, now, "overloaded", self._overload_facts(victim, "dropped oldest"))
        self.backlog.enter(request)
        return actions

    def _supersede(self, request: Request, now: float) -> list[Action]:
        """Cancel what this one replaces, wherever it is: one that came before it may well be prepared after it."""
        older = self._superseded(request)
        return [action for each in older for action in self._abandon(each, now, "cancelled", {"superseded": True})]

    def _superseded(self, request: Request) -> list[Request]:
        if request.supersede is None:
            return []
        return [r for r in self.requests.values() if r.supersede == request.supersede and r.key < request.key]

    def _prepare_uncounted(self, request: Request, now: float) -> list[Action]:
        """Have a request prepared before it counts; where no engine can, it waits for one and counts now."""
        engine = self.gate.engine_of(request.model)
        return self._make_room(request, now) if engine is None else self._prepare(request)

    def _prepare(self, request: Request) -> list[Action]:
        engine = self.gate.engine_of(request.model)
        if engine is None or request.state is not State.ACCEPTED:
            return []
        request.move(State.PREPARING)
        request.engine = engine
        return [Prepare(request, engine)]

    # Out of the queue.

    def _settle(self, now: float) -> list[Action]:
        """Lease what is free, let in what was held back, make room for what cannot wait, tell waiters."""
        actions = [self._start(request, engine, now) for request, engine in leases(self.waiting, self.gate, now)]
        while (request := self.backlog.next_held()) is not None:
            actions += self._prepare(request)
        actions += plan_parking(self._leased(), self.waiting, self.gate, now)
        actions += plan_progress(self.waiting, self.rate, self.gate, now)
        return actions

    def _leased(self) -> list[Request]:
        return [self.requests[key] for key in self.gate.leased_keys() if key in self.requests]

    def _start(self, request: Request, engine: int, now: float) -> Action:
        self.waiting.remove(request)
        self.backlog.leave(request)
        parked = request.state is State.PARKED
        request.move(State.RUNNING)
        request.engine = engine
        request.leased_at = now if request.leased_at is None else request.leased_at
        if parked:
            return Resume(request.key, engine)
        self.fairness.started(request, now)
        return Run(request, engine)

    # To the end.

    def _abandon(self, request: Request, now: float, reason: str, data: dict[str, Any] | None = None) -> list[Action]:
        """Answer a request with an error and have its engine let go of it."""
        engine = request.engine if request.state in (State.RUNNING, State.PARKED) else None
        actions: list[Action] = [self._fail(request, reason, now, data)]
        if engine is not None:
            actions.append(Halt(request.key, engine))
        return actions

    def _expire(self, request: Request, now: float) -> list[Action]:
        if request.halted_until is not None:
            return [self._complete(request, now)]
        if not request.produced or request.engine is None:
            return self._abandon(request, now, "deadline_exceeded")
        request.halted_until = now + _LAST_WORD_S
        return [Halt(request.key, request.engine, deadline=True)]

    def _recover(self, request: Request, now: float) -> list[Action]:
        """Go on with a request of a dead engine, or answer it."""
        if request.halted_until is not None:
            return [self._complete(request, now)]
        lost = recover(request, self.waiting, self.backlog, now)
        return [] if lost is None else [self._fail(request, "engine_lost", now, lost)]

    def _free_now(self, request: Request) -> bool:
        if self.gate.engine_of(request.model) is None:
            return False
        free = self.gate.available(request.model, request.device)
        return free > sum(r.model == request.model for r in self.waiting)

    def _overloaded(self, request: Request, why: str, now: float) -> Fail:
        return self._fail(request, "overloaded", now, self._overload_facts(request, why))

    def _overload_facts(self, request: Request, why: str) -> dict[str, Any]:
        wait = self.rate.wait(len(self.backlog), self.gate.capacity(request.model))
        return self.backlog.overload_facts(why, wait)

    def _complete(self, request: Request, now: float) -> Complete:
        self._end(request, now)
        self.totals.completed += 1
        return Complete(request)

    def _fail(self, request: Request, reason: str, now: float, data: dict[str, Any] | None = None) -> Fail:
        self._end(request, now)
        self.totals.count_error(reason)
        return Fail(request, reason, data or {})

    def _end(self, request: Request, now: float) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
        self.backlog.leave(request)
        if request.leased_at is not None:
            self.fairness.ended(request, now)
            self.rate.observe(now - request.leased_at)
        request.move(State.ENDED)
        del self.requests[request.key]
