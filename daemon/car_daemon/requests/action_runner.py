"""The runner of scheduler actions: it sends frames to engines and answers to clients."""

from collections.abc import Callable
from typing import Any

from car_base.host import defects
from car_base.host.event_log import log
from car_base.ipc import frames
from car_daemon.engines.registry import EngineRegistry
from car_daemon.requests.answer import PendingAnswer
from car_daemon.requests.meter import Meter
from car_daemon.scheduler.request import (
    Action,
    Complete,
    Fail,
    QueueProgress,
    Remind,
    Request,
    SendHalt,
    SendPark,
    SendPrepare,
    SendResume,
    SendRun,
    SendYield,
)
from car_daemon.scheduler.scheduler import Scheduler
from car_daemon.scheduler.state import outcome_of
from car_daemon.telemetry.logs import trace_facts
from car_protocol.errors import RpcError

_SLOW_WAIT_S = 0.1


class ActionRunner:
    """Owner of the pending answers; calls `answered` with the model of each request after its terminal answer.

    `remind` takes the time, in seconds of `clock`, at which the scheduler's `expire` is to be called. `check_day`
    raises RpcError for a person whose tokens of the day are used up.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engines: EngineRegistry,
        *,
        clock: Callable[[], float],
        answered: Callable[[str], None],
        remind: Callable[[float], None],
        meter: Meter,
        check_day: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._clock = clock
        self._answered = answered
        self._remind = remind
        self._meter = meter
        self._check_day = check_day
        self.answers: dict[int, PendingAnswer] = {}  # by the request's key
        self._divided_at = 0  # the gate's `busy_changes` when the cores were divided last

    def __repr__(self) -> str:
        return f"<ActionRunner {len(self.answers)} pending answers>"

    def do(self, actions: list[Action]) -> None:
        """Carry out actions in order; a request that no frame can hold is refused as an internal error."""
        for action in actions:
            try:
                actions += self._carry_out(action)
            except Exception as error:
                if not isinstance(action, SendPrepare | SendRun):
                    raise
                # Left alone, the request would keep its place in the queue for ever.
                defects.report("request.unsendable", error)
                key, now = action.request.key, self._clock()
                actions += self._scheduler.refused(key, action.engine, "internal_error", {}, now)
        gate = self._scheduler.gate
        if gate.busy_changes != self._divided_at:
            self._divided_at = gate.busy_changes
            self._engines.divide_cores(gate.busy_engines())

    def _carry_out(self, action: Action) -> list[Action]:
        """Carry out an action; return further actions, which come after all others."""
        send, answers = self._engines.send, self.answers
        match action:
            case SendPrepare(request, engine):
                return self._prepare(answers[request.key], engine)
            case SendRun(request, engine):
                return self._run(request, engine)
            case SendPark() | SendHalt() | SendYield():
                send(action.engine, _frame_of(action))
            case SendResume(key, engine):
                send(engine, frames.Resume(key))
                if self._meter.on:
                    self._meter.leased(answers[key], engine, self._clock())
            case QueueProgress(request, position, eta_ms):
                answers[request.key].queued(position, eta_ms)
            case Remind(time):
                self._remind(time)
            case Complete() | Fail():
                return self._end(action)
        return []

    def _run(self, request: Request, engine: int) -> list[Action]:
        answer = self.answers[request.key]
        person = answer.origin.identity.person
        # Requests that were sent with it may have used up the day. What has begun goes on, with its other answers.
        if person is not None and not (request.retried or any(map(self._has_begun, answer.siblings.keys))):
            try:
                self._check_day(person)
            except RpcError as error:
                self._engines.send(engine, frames.Forget(request.key))
                self._forget(answer, besides=engine)
                return self._scheduler.refused(request.key, engine, error.reason, error.data, self._clock())
        self._engines.send(engine, answer.as_run())
        self._forget(answer, besides=engine)
        self._log_wait(request)
        if self._meter.on:
            self._meter.leased(answer, engine, self._clock())
        return []

    def _end(self, action: Complete | Fail) -> list[Action]:
        """Send the terminal answer of a request."""
        request, actions = action.request, list[Action]()
        answer = self.answers.pop(request.key)
        if self._meter.on:
            outcome = outcome_of(action.reason) if isinstance(action, Fail) else "completed"
            self._meter.ended(answer, outcome, self._clock())
        if isinstance(action, Complete):
            self._complete(answer)
        else:
            if request.leased_at is None or request.retried:
                self._engines.send(request.engine, frames.Forget(request.key))
                self._forget(answer, besides=request.engine)
            actions = self._fail(answer, action.reason, action.data)
        self._answered(request.model)
        return actions

    def _prepare(self, answer: PendingAnswer, engine: int) -> list[Action]:
        """Send an engine the prompt of a request, unless it has it from another request for the same prompt."""
        forms = answer.siblings.forms
        if engine not in forms:
            if forms:
                self._forget(answer, besides=engine)
            forms[engine] = answer.as_prepare()
            self._engines.send(engine, forms[engine])
        message = forms[engine]
        if not isinstance(message, frames.Prepared):
            return []
        prompt = answer.prepared(message, routed=self._scheduler.gate.replicas(answer.request.model) > 1)
        return self._scheduler.prepared(answer.request.key, prompt, self._clock())

    def _forget(self, answer: PendingAnswer, *, besides: int | None) -> None:
        """Have the other engines that this request was sent to drop its images; they would prepare the prompt anew."""
        forms, key = answer.siblings.forms, answer.request.key
        for engine, form in list(forms.items()):
            needless = not isinstance(form, frames.Prepared) or bool(form.images)
            if engine != besides and form.key == key and needless:
                del forms[engine]
                self._engines.send(engine, frames.Forget(key))

    def _fail(self, answer: PendingAnswer, reason: str, data: dict[str, Any]) -> list[Action]:
        """Send a terminal error, and end the other requests for the same prompt.

        At a deadline an answer without tokens is complete if others have tokens.
        """
        others = [key for key in answer.siblings.keys if key != answer.request.key]
        if reason == "deadline_exceeded" and any(self._has_begun(key) for key in others):
            self._complete(answer)
            return []
        answer.fail(reason, data)
        answer.siblings.failed = True
        now = self._clock()
        return [action for key in others for action in self._scheduler.cancel(key, now, reason)]

    def _has_begun(self, key: int) -> bool:
        """Return whether a request has tokens; one that is complete has no pending answer."""
        return key not in self.answers or self.answers[key].begun

    def _complete(self, answer: PendingAnswer) -> None:
        """Send a terminal response; an answer that its engine left incomplete is an internal error."""
        try:
            answer.complete()
        except Exception as error:  # noqa: BLE001 - the request would never be answered
            defects.report("request.incomplete", error)
            answer.fail("internal_error", {})

    def _log_wait(self, request: Request) -> None:
        assert request.leased_at is not None
        waited = request.leased_at - request.spec.arrived
        if waited >= _SLOW_WAIT_S:
            gate = self._scheduler.gate
            log.info(
                "request.waited",
                model=request.model,
                waited_ms=round(waited * 1000),
                capacity=gate.capacity(request.model),
                available=gate.available(request.model),
                **trace_facts(self.answers[request.key].origin.trace),
            )


def _frame_of(action: SendPark | SendHalt | SendYield) -> frames.Park | frames.Halt | frames.Yield:
    match action:
        case SendPark(key, _):
            return frames.Park(key)
        case SendHalt(key, _, deadline):
            return frames.Halt(key, deadline)
        case SendYield(keys, _):
            return frames.Yield(keys)
