"""Events of engines and of models, passed on to answers, tokenization and the scheduler."""

from collections.abc import Callable

from car_base.host.event_log import log
from car_base.ipc import frames
from car_daemon.engines.link import Engine
from car_daemon.engines.registry import EngineRegistry
from car_daemon.models.entry import ModelEntry
from car_daemon.requests.action_runner import ActionRunner
from car_daemon.requests.answer import PendingAnswer
from car_daemon.requests.meter import Meter
from car_daemon.requests.tokenization import Tokenization
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import State
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.envelope import Failure, encode_message
from car_protocol.errors import RpcError


class ModelWork:
    """Requests and tokenizations of a model that have no answer yet."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ActionRunner,
        tokenization: Tokenization,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._tokenization = tokenization
        self._clock = clock

    def busy(self, model: str) -> bool:
        """Return whether a model has open work."""
        return model in self._scheduler.table.models or self._tokenization.jobs.busy(model)

    def engaged(self, model: str) -> bool:
        """Return whether a model's engine has work, or prepared a request that will run."""
        requests = self._scheduler.table.models.get(model)
        engaged = requests is not None and len(requests) > requests.states[State.ACCEPTED]
        return engaged or self._tokenization.jobs.engaged(model)

    def close(self, model: str) -> None:
        """Stop sending work to a model's engines: later work waits for another engine."""
        self._scheduler.gate.close(model)
        self._tokenization.engines.close(model)

    def model_failed(self, entry: ModelEntry) -> None:
        """Refuse all work of a model that cannot be served."""
        data = {"why": entry.reason, **entry.shortage}
        self._tokenization.model_failed(entry.name, data)
        self._runner.do(self._scheduler.model_failed(entry.name, self._clock(), data))

    def refuse_other_devices(self, entry: ModelEntry) -> None:
        """Refuse requests for a device on which the model has no replica."""
        lacks = {"lacks": "device"}
        self._runner.do(self._scheduler.model_failed(entry.name, self._clock(), lacks, left=entry.replicas.devices))


class EngineEvents:
    """Events that supervisors report; `engine` is an engine's number.

    A frame counts for requests that this engine has: an engine that a hostile model file controls ends its own alone.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engines: EngineRegistry,
        runner: ActionRunner,
        tokenization: Tokenization,
        work: ModelWork,
        *,
        meter: Meter,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._meter = meter
        self._runner = runner
        self._tokenization = tokenization
        self._work = work
        self._clock = clock

    def engine_ready(self, entry: ModelEntry, engine: int, link: Engine, ready: frames.Ready) -> None:
        """Serve the model's requests with this engine from now on."""
        self._work.refuse_other_devices(entry)
        self._engines.joined(engine, link, ready)
        self._tokenization.engine_ready(entry.name, engine, link)
        offer = EngineOffer(
            model=entry.name,
            sequences=ready.sequences,
            device=ready.device,
            context_tokens=ready.context_tokens,
            rates=tuple(ready.rates),
            prompt_share=ready.prompt_share,
            host=link.host,
        )
        self._runner.do(self._scheduler.engine_ready(engine, offer, self._clock()))
        self.memory_short()

    def frame_received(self, engine: int, message: frames.FromEngine) -> None:
        """Pass on a frame about requests."""
        match message:
            case frames.StepDone():
                self._step_done(engine, message)
            case frames.Prepared():
                self._prepared(engine, message)
            case frames.Parked():
                self._runner.do(self._scheduler.parked(message.key, engine, self._clock()))
            case frames.Refused():
                self._refused(engine, message)
            case frames.TokenIds() | frames.TokensCounted() | frames.PlainText():
                self._tokenization.answered(engine, message)

    def engine_lost(self, engine: int, suspect: int | None = None) -> None:
        """Go on without an engine: its requests run again or are answered."""
        self._engines.left(engine)
        self._meter.engine_lost(engine)
        self._tokenization.engine_lost(engine, suspect)
        self._runner.do(self._scheduler.engine_lost(engine, self._clock(), suspect))

    def replica_failed(self, entry: ModelEntry) -> None:
        """Refuse the requests that only this replica could have served."""
        if entry.state == "failed":
            self._work.model_failed(entry)
        else:
            self._work.refuse_other_devices(entry)

    def cores_taken(self, cores: int) -> None:
        """Leave this number of cores to other programs."""
        self._engines.leave_cores(cores, self._scheduler.gate.busy_engines())

    def memory_short(self) -> None:
        """Have the engines of machines that are short of memory give back what they can compute again."""
        self._engines.spare_memory(self._scheduler.gate.short_hosts)

    def _step_done(self, engine: int, step: frames.StepDone) -> None:
        now = self._clock()
        if self._meter.on:
            self._meter.step(engine, step)
        if step.resident:
            self._scheduler.resident(engine, step.resident)
        for update in step.updates:
            answer = self._answer_by(engine, update.key)
            if answer is not None:
                answer.add(update)
                self._scheduler.advanced(update.key, update.prompt_done, update.sampled, update.cached)
            if update.end is not None:
                failure = None
                if answer is not None and update.end.fault is not None:
                    failure = answer.failure(self._scheduler.gate.context_tokens(engine))
                if failure is not None and failure.reason == "internal_error":
                    log.error("request.failed", engine=engine, fault=update.end.defect or update.end.fault)
                self._runner.do(self._scheduler.ended(update.key, engine, now, failure))
        if self._scheduler.gate.in_use > 1:  # a request alone neither yields nor is yielded to
            self._runner.do(self._scheduler.stepped(engine))

    def _answer_by(self, engine: int, key: int) -> PendingAnswer | None:
        """Return the pending answer of a request that an engine has."""
        answer = self._runner.answers.get(key)
        return answer if answer is not None and answer.request.engine == engine else None

    def _prepared(self, engine: int, message: frames.Prepared) -> None:
        """Queue the requests that an engine prepared: the requests for the same prompt that have this engine."""
        answer = self._answer_by(engine, message.key)
        if answer is None:
            return
        answer.siblings.forms[engine] = message
        prepared = [each for key in answer.siblings.keys if (each := self._answer_by(engine, key)) is not None]
        routed, now = self._scheduler.gate.replicas(answer.request.model) > 1, self._clock()
        for each in prepared:
            if not each.siblings.failed:
                prompt = each.prepared(message, routed=routed)
                self._runner.do(self._scheduler.prepared(each.request.key, prompt, now))

    def _refused(self, engine: int, message: frames.Refused) -> None:
        try:
            error = RpcError(message.reason, started=False, **message.data)
            encode_message(Failure(None, error.as_object()))
        except (KeyError, TypeError, ValueError):
            # Its reason or data cannot be sent to a client.
            error = RpcError("internal_error")
        answer, is_job = self._answer_by(engine, message.key), self._tokenization.refused(engine, message.key, error)
        if message.fault is not None and (is_job or answer is not None):
            log.error("request.failed", engine=engine, fault=message.fault)
        if not is_job and (answer is not None or message.key not in self._runner.answers):
            now = self._clock()
            self._runner.do(self._scheduler.refused(message.key, engine, error.reason, error.data, now))
