"""Carries out what the scheduler decides: frames to engines, answers to clients, timers for deadlines."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import structlog

from car_daemon import faults
from car_daemon.answer import GrowingAnswer, request_of
from car_daemon.deadlines import Deadlines
from car_daemon.engine import frames
from car_daemon.latencies import Latencies
from car_daemon.logs import trace_facts
from car_daemon.lookups import Lookups
from car_daemon.models.entry import ModelEntry
from car_daemon.models.fleet import Fleet
from car_daemon.models.link import Engine
from car_daemon.models.pool import ModelPool
from car_daemon.pending import Owner, Pending, Reply
from car_daemon.scheduler.actions import Action, Complete, Fail, Halt, Park, Prepare, Progress, Resume, Run
from car_daemon.scheduler.gate import Offer
from car_daemon.scheduler.request import Request, State
from car_daemon.scheduler.router import blocks_of
from car_daemon.scheduler.scheduler import Scheduler
from car_daemon.texts_answer import TextsAnswer
from car_protocol.embed import EmbedParams, RerankParams
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams

log = structlog.get_logger()
_SLOW_WAIT_S = 0.1


class Inference:
    """Everything between the handlers and the engines; `arrived` and `left` hear of models with more and less to do."""

    def __init__(
        self,
        scheduler: Scheduler,
        pool: ModelPool,
        *,
        clock: Callable[[], float],
        arrived: Callable[[ModelEntry], None],
        left: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._clock = clock
        self._arrived = arrived
        self._left = left
        self._keys = count(1)
        self.lookups = Lookups(
            self._keys,
            max_bytes=lambda: scheduler.backlog.bounds.max_bytes,
            draining=lambda: scheduler.draining,
            arrived=self._lookup_arrived,
            left=self._lookup_left,
        )
        self._deadlines = Deadlines(scheduler.next_deadline, self._expire, clock)
        self._fleet = Fleet()
        self._doers: dict[type[Action], Callable[[Any], None]] = {
            Prepare: self._prepare,
            Run: self._run,
            Park: self._park,
            Resume: self._resume,
            Halt: self._halt,
            Progress: self._progress,
            Complete: self._complete,
            Fail: self._fail,
        }
        # Mutable state besides the above: answers on their way by key, how long those of each model waited, and whether
        # a drain has nothing left to finish.
        self.answers: dict[int, Pending] = {}
        self.latencies: dict[str, Latencies] = {}
        self.drained = asyncio.Event()

    def infer(self, params: InferParams, owner: Owner, reply: Reply, *, size: int, streams: bool) -> int:
        """Take a request of `size` bytes; return the key that cancels it. Raises RpcError if no model can serve it."""
        entry = self._pool.servable(params.model)
        if not entry.is_on(params.device):
            raise RpcError("model_unavailable", lacks="device")
        now = self._clock()
        request = request_of(params, owner, next(self._keys), entry.name, size=size, now=now)
        return self._submit(entry, self._growing(request, params, owner, reply, streams=streams), now)

    def _growing(
        self, request: Request, params: InferParams, owner: Owner, reply: Reply, *, streams: bool
    ) -> GrowingAnswer:
        latencies = self.latencies.setdefault(request.model, Latencies())
        return GrowingAnswer(request, params, owner, reply, streams=streams, latencies=latencies, clock=self._clock)

    def texts(self, params: EmbedParams | RerankParams, owner: Owner, reply: Reply, *, size: int) -> int:
        """Take texts to embed or to rank; return the key that cancels it. Raises RpcError if no model can."""
        entry = self._pool.servable(params.model)
        now = self._clock()
        client = owner.uid, owner.pid
        request = Request(next(self._keys), entry.name, arrived=now, client=client, process=owner.pid, size=size)
        return self._submit(entry, TextsAnswer(request, params, owner, reply), now)

    def _submit(self, entry: ModelEntry, answer: Pending, now: float) -> int:
        request = answer.request
        self.answers[request.key] = answer
        self._do(self._scheduler.submit(request, now))
        self._deadlines.add(request.expires_at)
        if request.key in self.answers:
            self._arrived(entry)
        return request.key

    def cancel(self, key: int, reason: str = "cancelled") -> None:
        """End a request in any state; unknown and finished ones are ignored."""
        self._do(self._scheduler.cancel(key, self._clock(), reason))

    def hold(self, key: int) -> None:
        """Set a request aside until `release`."""
        self._do(self._scheduler.hold(key, self._clock()))

    def release(self, key: int) -> None:
        """Let a request go on that was held."""
        self._do(self._scheduler.release(key, self._clock()))

    def dispatch(self) -> None:
        """Start what may run now that capacity changed."""
        self._do(self._scheduler.dispatch(self._clock()))

    def drain(self) -> None:
        """Refuse new requests and look-ups; `drained` is set once the others are done."""
        self._scheduler.drain()
        self._look_for_the_end()

    def refuse_all(self, reason: str) -> None:
        """End everything in flight, look-ups too."""
        self.lookups.refuse_all(reason)
        self._do(self._scheduler.refuse_all(reason, self._clock()))

    # What engines say and do, as the supervisors tell it.

    def engine_ready(self, entry: ModelEntry, engine: int, link: Engine, ready: frames.Ready) -> None:
        """Serve the model's requests with this engine from now on."""
        self._refuse_lacking(entry)
        self._fleet.joined(engine, link, ready)
        self.lookups.engine_ready(entry.name, engine, link)
        offer = Offer(entry.name, ready.sequences, ready.device, ready.context_tokens)
        self._do(self._scheduler.engine_ready(engine, offer, self._clock()))

    def engine_said(self, engine: int, message: frames.FromEngine) -> None:
        """Take a frame about requests."""
        match message:
            case frames.StepDone():
                self._take_step(engine, message)
            case frames.Prepared():
                self._prepared(message)
            case frames.Parked():
                self._do(self._scheduler.parked(message.key, engine, self._clock()))
            case frames.Refused():
                self._refused(engine, message)
            case frames.TokenIds() | frames.PlainText():
                self.lookups.answered(message)

    def cores_taken(self, cores: int) -> None:
        """Compute on the cores that other programs leave."""
        self._fleet.cores_taken(cores, self._scheduler.gate.busy_engines())

    def engine_lost(self, engine: int) -> None:
        """Go on without an engine: its requests run again or are answered, its look-ups are answered."""
        self._fleet.left(engine)
        self.lookups.engine_lost(engine)
        self._do(self._scheduler.engine_lost(engine, self._clock()))

    def replica_failed(self, entry: ModelEntry) -> None:
        """Answer what waits for a device that a model will not be on, or for a model that cannot be served."""
        if entry.state == "failed":
            self.model_failed(entry)
        else:
            self._refuse_lacking(entry)

    def _refuse_lacking(self, entry: ModelEntry) -> None:
        lacks = {"lacks": "device"}
        self._do(self._scheduler.model_failed(entry.name, self._clock(), lacks, left=entry.devices))

    def model_failed(self, entry: ModelEntry) -> None:
        """Answer everything that waits for a model that cannot be served."""
        data = {"why": entry.reason, **entry.shortage}
        self.lookups.model_failed(entry.name, data)
        self._do(self._scheduler.model_failed(entry.name, self._clock(), data))

    # What the keeper of the models asks.

    def busy(self, model: str) -> bool:
        """Tell whether anything is asked of a model."""
        asked = any(request.model == model for request in self._scheduler.requests.values())
        return asked or self.lookups.busy(model)

    def engaged(self, model: str) -> bool:
        """Tell whether the engine of a model has anything to do, or prepared something that will run."""
        requests = self._scheduler.requests.values()
        engaged = any(request.model == model and request.state is not State.ACCEPTED for request in requests)
        return engaged or self.lookups.engaged(model)

    def close(self, model: str) -> None:
        """Give a model's engine nothing new: what comes from now on waits for another one."""
        self._scheduler.gate.close(model)
        self.lookups.close(model)

    def _take_step(self, engine: int, step: frames.StepDone) -> None:
        now = self._clock()
        for row in step.rows:
            answer = self.answers.get(row.key)
            if answer is not None:
                answer.take(row)
            self._scheduler.advanced(row.key, row.prompt_done, row.sampled, now, row.cached)
            if row.end is not None:
                failure = answer.failure if answer is not None else None
                if failure is not None and failure.reason == "internal_error":
                    log.error("request.failed", engine=engine, fault=row.end.fault)
                self._do(self._scheduler.ended(row.key, engine, now, failure))

    def _prepared(self, message: frames.Prepared) -> None:
        answer = self.answers.get(message.key)
        if answer is not None:
            answer.prepared(message)
            prompt_tokens, blocks = answer.prompt_tokens, self._blocks(answer, message)
            self._do(self._scheduler.prepared(message.key, prompt_tokens, message.max_tokens, self._clock(), blocks))

    def _blocks(self, answer: Pending, message: frames.Prepared) -> tuple[int, ...]:
        """Return what a router compares prompts by; nothing where it has no choice, or nothing is reused."""
        choice = self._scheduler.gate.replicas(answer.request.model) > 1
        return blocks_of(message.tokens, answer.namespace) if choice and answer.namespace is not None else ()

    def _refused(self, engine: int, message: frames.Refused) -> None:
        if message.fault is not None:
            log.error("request.failed", engine=engine, fault=message.fault)
        if not self.lookups.refused(message):
            self._do(self._scheduler.refused(message.key, engine, message.reason, message.data, self._clock()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            try:
                self._doers[type(action)](action)
            except Exception as error:
                if not isinstance(action, Prepare | Run):
                    raise
                # No frame can hold it: it would keep its place for ever.
                faults.report("request.unsendable", error)
                key, now = action.request.key, self._clock()
                actions += self._scheduler.refused(key, action.engine, "internal_error", {}, now)
        self._fleet.divide_cores(self._scheduler.gate.busy_engines())
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        if self._scheduler.draining and not self.answers and not self.lookups:
            self.drained.set()

    def _lookup_arrived(self, model: str) -> None:
        self._arrived(self._pool.named(model))

    def _lookup_left(self, model: str) -> None:
        self._left(model)
        self._look_for_the_end()

    def _prepare(self, action: Prepare) -> None:
        self._fleet.send(action.engine, self.answers[action.request.key].as_prepare())

    def _park(self, action: Park) -> None:
        self._fleet.send(action.engine, frames.Park(action.key))

    def _resume(self, action: Resume) -> None:
        self._fleet.send(action.engine, frames.Resume(action.key))

    def _progress(self, action: Progress) -> None:
        self.answers[action.request.key].queued(action.position, action.eta_ms)

    def _complete(self, action: Complete) -> None:
        self.answers.pop(action.request.key).complete()
        self._left(action.request.model)

    def _fail(self, action: Fail) -> None:
        request = action.request
        if request.leased_at is None:
            self._fleet.send(request.engine, frames.Forget(request.key))
        self.answers.pop(action.request.key).fail(action.reason, action.data)
        self._left(action.request.model)

    def _run(self, action: Run) -> None:
        request = action.request
        self._fleet.send(action.engine, self.answers[request.key].as_run())
        assert request.leased_at is not None
        waited = request.leased_at - request.arrived
        if waited >= _SLOW_WAIT_S:
            gate = self._scheduler.gate
            log.info(
                "request.waited",
                model=request.model,
                waited_ms=round(waited * 1000),
                capacity=gate.capacity(request.model),
                available=gate.available(request.model),
                **self._trace_facts(request),
            )

    def _trace_facts(self, request: Request) -> dict[str, str]:
        return trace_facts(self.answers[request.key].owner.trace)

    def _halt(self, action: Halt) -> None:
        self._fleet.send(action.engine, frames.Halt(action.key, action.deadline))

    def _expire(self) -> None:
        actions = self._scheduler.expire(self._clock())
        for request in (action.request for action in actions if isinstance(action, Fail)):
            facts = self._trace_facts(request)
            log.warning("request.timed_out", model=request.model, limit_ms=request.limit_ms, **facts)
        self._do(actions)
