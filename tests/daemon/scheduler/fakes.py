"""The scheduler's surroundings: clients that count their answers, engines that act in any order."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from car_base.ipc.engine_settings import STEP_TARGET_MS
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import (
    Action,
    Client,
    Complete,
    Decisions,
    EngineFailure,
    Fail,
    Prompt,
    QueueProgress,
    Remind,
    Request,
    RequestSpec,
    SendHalt,
    SendPark,
    SendPrepare,
    SendResume,
    SendRun,
    SendYield,
    Session,
    Verb,
)
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.capacity import Pressure
from car_protocol.infer import Priority

Shape = tuple[str, int, object]
PROMPT_TOKENS = 10


def shapes(actions: Iterable[Action]) -> list[Shape]:
    """Return actions as plain tuples: name, key, and its engine, reason, position or None."""
    return [_shape(action) for action in actions]


def _shape(action: Action) -> Shape:
    match action:
        case SendPrepare() | SendRun():
            return type(action).__name__.removeprefix("Send").lower(), action.request.key, action.engine
        case SendPark() | SendResume():
            return type(action).__name__.removeprefix("Send").lower(), action.key, action.engine
        case SendHalt():
            return "halt at deadline" if action.deadline else "halt", action.key, action.engine
        case SendYield():
            return "yield", 0, action.keys
        case QueueProgress():
            return "progress", action.request.key, action.position
        case Remind():
            return "remind", 0, action.time
        case Complete():
            return "complete", action.request.key, None
        case Fail():
            return "fail", action.request.key, action.reason


def failure(actions: Iterable[Action]) -> Fail:
    """Return the one error among actions."""
    (fail,) = (action for action in actions if isinstance(action, Fail))
    return fail


@dataclass
class FakeEngine:
    """An engine that carries out actions, and reports when a test calls it.

    Each of `running` has a lease, `to_park` of them were sent `SendPark`, `parked` were set aside; `halted` are the
    running and parked requests that may end next. Prompts of
    `yielding` requests are read while it writes no answer.
    """

    number: int
    model: str
    sequences: int
    device: str = "cpu"
    host: str | None = None
    level: Pressure = "none"  # on its GPU
    preparing: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    to_park: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    halted: set[int] = field(default_factory=set)
    yielding: set[int] = field(default_factory=set)

    @property
    def may_end(self) -> list[int]:
        """The requests whose end may be reported next."""
        return sorted(self.running | (self.parked & self.halted))

    def prepare(self, key: int) -> None:
        """Take a prompt."""
        assert key not in self.preparing
        self.preparing.add(key)

    def run(self, key: int) -> None:
        """Start a request; more than declared would be a defect of the gate."""
        assert key not in self.running | self.parked
        assert len(self.running) < self.sequences
        self.running.add(key)

    def park(self, key: int) -> None:
        """Remember to set a request aside; one that has ended is ignored."""
        if key in self.running:
            self.to_park.add(key)

    def resume(self, key: int) -> None:
        """Go on with a request that was set aside."""
        assert len(self.running) < self.sequences
        self.parked.remove(key)
        self.running.add(key)

    def halt(self, key: int) -> None:
        """Remember to end a request; one that has ended is ignored."""
        if key in self.running | self.parked:
            self.halted.add(key)

    def set_aside(self, key: int) -> None:
        """Empty the sequence of a request that goes on later."""
        self.to_park.remove(key)
        self.running.remove(key)
        self.parked.add(key)

    def end(self, key: int) -> None:
        """Empty the sequence of a request."""
        assert key in self.may_end
        for keys in (self.running, self.to_park, self.parked, self.halted):
            keys.discard(key)


class World:
    """A scheduler with its engines and clients; every method is one event, whose actions are carried out."""

    def __init__(
        self, machine_limit: int | None = None, bounds: QueueBounds | None = None, kind: type[Gate] = Gate
    ) -> None:
        decisions = Decisions(self._decided)
        self.gate = kind(machine_limit, decisions)
        self.scheduler = Scheduler(self.gate, bounds, decisions=decisions)
        self.decisions: list[tuple[Verb, int, str]] = []
        self.now = 0.0
        self.engines: dict[int, FakeEngine] = {}
        self.requests: dict[int, Request] = {}
        self.endings: dict[int, list[str]] = {}
        self.positions: dict[int, list[int]] = {}
        self.fails: list[Fail] = []
        self.reminders: list[float] = []
        self.prepared_keys: set[int] = set()
        self.engines_started = 0

    def _decided(self, verb: Verb, request: Request, why: str) -> None:
        self.decisions.append((verb, request.key, why))

    def engine_of(self, model: str) -> FakeEngine | None:
        """Return the engine that is up for a model."""
        return next((engine for engine in self.engines.values() if engine.model == model), None)

    def engines_of(self, model: str) -> list[FakeEngine]:
        """Return the engines that are up for a model."""
        return [engine for engine in self.engines.values() if engine.model == model]

    def engine_with(self, key: int) -> FakeEngine | None:
        """Return the engine that prepares or runs a request."""
        return next((engine for engine in self.engines.values() if key in engine.preparing | engine.running), None)

    def submit(
        self,
        model: str = "m",
        *,
        client: Client = (0, ""),
        process: int = 0,
        tenant: str = "",
        size: int = 0,
        decides: bool = False,
        priority: Priority = "latency_critical",
        wait: bool = True,
        queue: bool = True,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        supersede: tuple[int, str] | None = None,
        progress: bool = False,
        device: str | None = None,
        session: Session | None = None,
    ) -> Request:
        """Submit a client's request; keys ascend by arrival."""
        spec = RequestSpec(
            key=len(self.requests) + 1,
            model=model,
            arrived=self.now,
            client=client,
            process=process,
            tenant=tenant,
            decides=decides,
            size=size,
            priority=priority,
            wait=wait,
            queue=queue,
            timeout=timeout,
            queue_timeout=queue_timeout,
            supersede=supersede,
            progress=progress,
            device=device,
            session=session,
        )
        request = Request(spec)
        self.requests[request.key] = request
        self.endings[request.key] = []
        self.positions[request.key] = []
        self.do(self.scheduler.submit(request, self.now))
        return request

    def run_one(
        self,
        engine: FakeEngine,
        *,
        client: Client = (0, ""),
        priority: Priority = "latency_critical",
        timeout: float | None = None,
        queue_timeout: float | None = None,
        progress: bool = False,
    ) -> Request:
        """Let a request come and be prepared."""
        request = self.submit(
            engine.model,
            client=client,
            priority=priority,
            timeout=timeout,
            queue_timeout=queue_timeout,
            progress=progress,
        )
        self.prepare(engine, request.key)
        return request

    def start_engine(
        self, model: str = "m", sequences: int = 2, device: str = "cpu", host: str | None = None
    ) -> FakeEngine:
        """Let an engine become ready."""
        self.engines_started += 1
        engine = FakeEngine(self.engines_started, model, sequences, device, host)
        self.engines[engine.number] = engine
        offer = EngineOffer(model, sequences, device, host=host)
        self.do(self.scheduler.engine_ready(engine.number, offer, self.now))
        return engine

    def press(self, host: str | None, level: Pressure) -> None:
        """Let the memory of another machine, None for this one, run short, or recover."""
        if host is None:
            self.gate.pressure = level
        else:
            self.gate.press(host, level)
        self.do(self.scheduler.allocate(self.now))

    def press_engine(self, engine: FakeEngine, level: Pressure) -> None:
        """Let the GPU of one engine alone run short of memory, or recover."""
        engine.level = level
        self.gate.press_engines({each.number: each.level for each in self.engines.values()})
        self.do(self.scheduler.allocate(self.now))

    def lose_engine(self, engine: FakeEngine, suspect: int | None = None) -> None:
        """Kill an engine, which hung at a `suspect`.

        Prompts prepared by the last one of a model have to be prepared anew by the next.
        """
        del self.engines[engine.number]
        if not self.engines_of(engine.model):
            self.prepared_keys -= {key for key, request in self.requests.items() if request.model == engine.model}
        self.do(self.scheduler.engine_lost(engine.number, self.now, suspect))

    def fail_model(self, model: str, left: Collection[str] = ()) -> None:
        """Give up on a model, or on its replicas on all but the devices that are left."""
        self.do(self.scheduler.model_failed(model, self.now, left=left))

    def prepare(
        self,
        engine: FakeEngine,
        key: int,
        blocks: tuple[int, ...] = (),
        *,
        images: bool = False,
        tokens: int = PROMPT_TOKENS,
    ) -> None:
        """Let an engine report a prompt as prepared, with `images` that it has encoded."""
        engine.preparing.remove(key)
        self.prepared_keys.add(key)
        self.do(self.scheduler.prepared(key, Prompt(tokens, 8, blocks, images), self.now))

    def prepare_all(self, engine: FakeEngine) -> None:
        """Let an engine report all its prompts as prepared, in the order of their arrival."""
        for key in sorted(engine.preparing):
            self.prepare(engine, key)

    def refuse(self, engine: FakeEngine, key: int, reason: str = "context_exceeded") -> None:
        """Let an engine refuse a prompt."""
        engine.preparing.remove(key)
        self.do(self.scheduler.refused(key, engine.number, reason, {}, self.now))

    def have_resident(self, engine: FakeEngine, *requests: Request) -> None:
        """Let an engine report the waiting requests whose prompts its idle sequences have."""
        self.scheduler.resident(engine.number, [request.key for request in requests])

    def advance(self, key: int, tokens: int = 1, *, streams: bool = False) -> None:
        """Let an engine report tokens; those of a stream are sent at once."""
        if streams and key in self.scheduler.requests:
            self.requests[key].sent = True
        self.scheduler.advanced(key, PROMPT_TOKENS, tokens)

    def step(self, engine: FakeEngine) -> None:
        """Let an engine end a step, whose tokens it reported."""
        self.do(self.scheduler.stepped(engine.number))

    def set_aside(self, engine: FakeEngine, key: int) -> None:
        """Let an engine report a request as parked."""
        engine.set_aside(key)
        self.do(self.scheduler.parked(key, engine.number, self.now))

    def end(self, engine: FakeEngine, key: int, *, failed: bool = False) -> None:
        """Let an engine report the end of a request."""
        engine.end(key)
        self.do(
            self.scheduler.ended(key, engine.number, self.now, EngineFailure("internal_error", {}) if failed else None)
        )

    def cancel(self, key: int) -> None:
        """Let a client change its mind."""
        self.do(self.scheduler.cancel(key, self.now))

    def pause(self, key: int) -> None:
        """Let a client stop reading."""
        self.do(self.scheduler.pause(key, self.now))

    def unpause(self, key: int) -> None:
        """Let a client read on."""
        self.do(self.scheduler.unpause(key, self.now))

    def pass_time(self, seconds: float) -> None:
        """Let the clock and the deadlines run."""
        self.now += seconds
        self.do(self.scheduler.expire(self.now))

    def pass_step(self) -> None:
        """Let so much time pass that leases have lasted for a step."""
        self.pass_time(STEP_TARGET_MS / 1000)

    def do(self, actions: Iterable[Action]) -> None:
        """Carry out what the scheduler decided; every action must be possible."""
        for action in actions:
            match action:
                case SendPrepare() | SendRun() | QueueProgress() | Complete() | Fail():
                    assert not self.endings[action.request.key], f"{action.request!r} has its answer already"
                    self._about(action)
                case SendPark():
                    self.engines[action.engine].park(action.key)
                case SendResume():
                    self.engines[action.engine].resume(action.key)
                case SendHalt():
                    self.engines[action.engine].halt(action.key)
                case SendYield():
                    self.engines[action.engine].yielding = set(action.keys)
                case Remind():
                    self.reminders.append(action.time)

    def _about(self, action: SendPrepare | SendRun | QueueProgress | Complete | Fail) -> None:
        key = action.request.key
        match action:
            case SendPrepare():
                self.engines[action.engine].prepare(key)
            case SendRun():
                assert key in self.prepared_keys
                self.engines[action.engine].run(key)
            case QueueProgress():
                self.positions[key].append(action.position)
            case Complete():
                self.endings[key].append("completed")
            case Fail():
                self.endings[key].append(action.reason)
                self.fails.append(action)
