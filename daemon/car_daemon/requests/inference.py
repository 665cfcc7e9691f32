"""Requests from submission to answer, with their model's defaults, and the log of decisions about them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, TypeVar

from msgspec import UNSET, structs

from car_base.host.devices import CPU
from car_base.host.event_log import Level, log
from car_base.host.timers import Deadlines
from car_daemon.engines.registry import EngineRegistry
from car_daemon.ledger.sums import Sums
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.requests.action_runner import ActionRunner
from car_daemon.requests.answer import CallOrigin, PendingAnswer, Responder, Siblings
from car_daemon.requests.deciding import DecisionAnswer
from car_daemon.requests.embedding import EmbeddingAnswer
from car_daemon.requests.engine_events import EngineEvents, ModelWork
from car_daemon.requests.explanations import Answered, Explanations
from car_daemon.requests.generation import GenerationAnswer, request_of, supersede_key
from car_daemon.requests.meter import Meter
from car_daemon.requests.several_answers import split
from car_daemon.requests.tokenization import Tokenization
from car_daemon.scheduler.request import Fail, Request, RequestSpec, Verb
from car_daemon.scheduler.scheduler import Scheduler
from car_daemon.telemetry.logs import trace_facts
from car_daemon.telemetry.metrics import Latencies
from car_protocol.answer import Usage
from car_protocol.conversation import SYSTEM_ROLES, Message
from car_protocol.decide import DecideParams
from car_protocol.errors import RpcError
from car_protocol.infer import InferParams
from car_protocol.models import Defaults
from car_protocol.text import EmbedParams, RerankParams, TokenizeParams

P = TypeVar("P", bound=InferParams | TokenizeParams)
Q = TypeVar("Q", bound=InferParams | DecideParams)


def with_defaults(params: P, defaults: Defaults) -> P:
    """Return the params with the entry's values in place of absent members."""
    given = structs.asdict(defaults)
    system = given.pop("system")
    changes: dict[str, Any] = {
        name: value
        for name, value in given.items()
        if value is not None and getattr(params, name, value) in (None, UNSET)
    }
    messages = params.messages
    if system is not None and messages and all(message.role not in SYSTEM_ROLES for message in messages):
        changes["messages"] = [Message("system", system), *messages]
    return structs.replace(params, **changes) if changes else params


def sink_at(level: Level) -> Callable[[Verb, Request, str], None] | None:
    """Return the sink of the scheduler's trace; None unless debug events are logged."""
    return _log_decision if level == "debug" else None


def _log_decision(verb: Verb, request: Request, why: str) -> None:
    # The key is a number of the daemon's own: the client's id, label and session never appear.
    facts = {"key": request.key, "model": request.model, "class": request.spec.priority, "why": why}
    event = f"schedule.{verb}"
    log.debug(event, **facts, engine=request.engine)


def _unexplained(_: Answered, usage: Usage) -> Usage:
    return structs.replace(usage, parted=None)


class Inference:
    """Requests from submission to answer.

    Calls `arrived` for every model that gets work, and `left` whenever work of a model ends; `check_day` as the runner.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pool: ModelPool,
        *,
        clock: Callable[[], float],
        arrived: Callable[[ModelEntry], None],
        left: Callable[[str], None],
        meter: Meter | None = None,
        check_day: Callable[[str], None] = lambda _: None,
    ) -> None:
        meter = meter or Meter(Sums(0))
        self.scheduler = scheduler
        self._pool = pool
        self._clock = clock
        self._arrived = arrived
        self._keys = count(1)
        self._deadlines = Deadlines(scheduler.next_deadline, self._expire, clock)
        self.tokenization = Tokenization(
            self._keys,
            max_bytes=lambda: scheduler.backlog.bounds.max_bytes,
            draining=lambda: scheduler.draining,
            arrived=lambda model: arrived(pool.accepted(model)),
            left=left,
        )
        engines = EngineRegistry()
        self.runner = ActionRunner(
            scheduler,
            engines,
            clock=clock,
            answered=left,
            remind=self._deadlines.add,
            meter=meter,
            check_day=check_day,
        )
        self.work = ModelWork(scheduler, self.runner, self.tokenization, clock=clock)
        self.events = EngineEvents(
            scheduler, engines, self.runner, self.tokenization, self.work, meter=meter, clock=clock
        )
        self.explanations = Explanations(engines.__contains__, clock)
        self.latencies: defaultdict[str, Latencies] = defaultdict(Latencies)  # by model

    def __repr__(self) -> str:
        return f"<Inference {len(self.runner.answers)} answers, {len(self.tokenization.jobs)} tokenizations>"

    @property
    def idle(self) -> bool:
        """True while no request and no tokenization lacks its answer."""
        return not self.runner.answers and not self.tokenization.jobs

    def infer(
        self, params: InferParams, origin: CallOrigin, responder: Responder, *, size: int, streams: bool
    ) -> Sequence[int]:
        """Submit a request of `size` bytes; return the keys that cancel its answers.

        Raises RpcError `model_unavailable`.
        """
        entry = self._pool.servable(params.model)
        sent, params = params, with_defaults(_placed(params, entry), entry.configured.defaults)
        given = len(params.messages or ()) > len(sent.messages or ())
        now, keys = self._clock(), list(islice(self._keys, params.n))
        siblings, latencies = Siblings(keys), self.latencies[entry.name]
        parts = split(params, responder, streams=streams) if params.n > 1 else [(params, responder)]
        for index, (own, receiver) in enumerate(parts):
            request = request_of(own, origin, keys, index, entry.name, size=size, now=now)
            answer = GenerationAnswer(
                request,
                own,
                origin,
                receiver,
                streams=streams,
                latencies=latencies,
                clock=self._clock,
                siblings=siblings,
                fingerprint=lambda: entry.replicas.fingerprint,
                # One of several answers explains the prompt, which they share.
                explain=_unexplained if index else partial(self.explanations.add, given=given),
            )
            self._submit(entry, answer, now)
            if siblings.failed:
                break
        return keys

    def embed(
        self, params: EmbedParams | RerankParams, origin: CallOrigin, responder: Responder, *, size: int
    ) -> Sequence[int]:
        """Submit texts to embed or to rank; return the key that cancels them. Raises RpcError `model_unavailable`."""
        entry = self._pool.servable(params.model)
        now = self._clock()
        spec = RequestSpec(
            key=next(self._keys),
            model=entry.name,
            arrived=now,
            client=(origin.identity.number, origin.client if origin.client is not None else origin.pid),
            process=origin.pid,
            tenant=origin.tenant,
            priority="throughput" if origin.background else "latency_critical",
            size=size,
        )
        self._submit(entry, EmbeddingAnswer(Request(spec), params, origin, responder), now)
        return (spec.key,)

    def decide(self, params: DecideParams, origin: CallOrigin, responder: Responder, *, size: int) -> Sequence[int]:
        """Submit questions about a state; return the key that cancels them. Raises RpcError `model_unavailable`."""
        entry = self._pool.servable(params.model)
        params = _placed(params, entry)
        now, keys = self._clock(), (next(self._keys),)
        request = request_of(params, origin, keys, 0, entry.name, size=size, now=now)
        answer = DecisionAnswer(
            request,
            params,
            origin,
            responder,
            temperatures=entry.configured.temperatures,
            latencies=self.latencies[entry.name],
            clock=self._clock,
        )
        self._submit(entry, answer, now)
        return keys

    def superseded(self, params: InferParams, origin: CallOrigin) -> int:
        """Return how many requests a request ends by its key."""
        if params.supersede is None:
            return 0
        return self.scheduler.table.superseded_by(supersede_key(params.supersede, params.supersede_scope, origin))

    def cancel(self, key: int, reason: str = "cancelled") -> None:
        """End a request in any state; unknown and ended requests are ignored."""
        if (answer := self.runner.answers.get(key)) is not None:
            log.debug("request.cancelled", key=key, model=answer.request.model, why=reason)
        self.runner.do(self.scheduler.cancel(key, self._clock(), reason))

    def pause(self, key: int) -> None:
        """Park a request until `unpause`."""
        self.runner.do(self.scheduler.pause(key, self._clock()))

    def unpause(self, key: int) -> None:
        """Let a paused request resume in its turn."""
        self.runner.do(self.scheduler.unpause(key, self._clock()))

    def allocate(self) -> None:
        """Start the requests that may run after a change of capacity."""
        self.runner.do(self.scheduler.allocate(self._clock()))

    def refuse_all(self, reason: str) -> None:
        """Answer all requests and tokenizations with an error."""
        self.tokenization.refuse_all(reason)
        self.runner.do(self.scheduler.refuse_all(reason, self._clock()))

    def _submit(self, entry: ModelEntry, answer: PendingAnswer, now: float) -> None:
        request = answer.request
        self.runner.answers[request.key] = answer
        self.runner.do(self.scheduler.submit(request, now))
        if request.limited and (expires_at := request.expires_at) is not None:
            self._deadlines.add(expires_at)
        if request.key in self.runner.answers:
            self._arrived(entry)

    def _expire(self) -> None:
        actions = self.scheduler.expire(self._clock())
        for request in (action.request for action in actions if isinstance(action, Fail)):
            assert request.limit is not None
            facts = trace_facts(self.runner.answers[request.key].origin.trace)
            log.warning("request.timed_out", model=request.model, limit_ms=round(request.limit * 1000), **facts)
        self.runner.do(actions)


def _placed(params: Q, entry: ModelEntry) -> Q:
    """Return a request for a device that the model is on; raises RpcError."""
    if params.reproducible:
        params = _on_cpu(params, entry)
    if params.device is not None and not entry.is_on(params.device):
        raise RpcError("model_unavailable", lacks="device")
    return params


def _on_cpu(params: Q, entry: ModelEntry) -> Q:
    """Return a reproducible request for the CPU, because only there answers are known to stay the same."""
    if params.device not in (None, CPU):
        raise _not_reproducible(f"leave out `device`, which is {params.device}")
    if not entry.is_on(CPU):
        raise _not_reproducible("no replica of this model is there")
    return structs.replace(params, device=CPU)


def _not_reproducible(why: str) -> RpcError:
    return RpcError("model_unavailable", lacks="reproducible", why=f"answers are reproducible on the CPU alone: {why}")
