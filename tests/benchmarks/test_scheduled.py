"""Simulated engines under the real scheduler: work that is parked goes on from where it was."""

from functools import partial

from benchmarks.scheduled import PARK_S, PREPARE_S, Clock, SimulatedEngines, Work
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import Request, RequestSpec
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.infer import Priority

PROMPT_PER_S, TOKENS_PER_S = 100.0, 10.0


class OneEngine:
    """An engine with one sequence, and the times at which requests had their answers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.scheduler = Scheduler(Gate(), QueueBounds())
        self.engines = SimulatedEngines(self.scheduler, self.clock, self, self)
        self.ended_at: dict[int, float] = {}
        self.engines.start(1, EngineOffer("m", 1, "cpu", 8192, (TOKENS_PER_S,), 0.1, "here"))

    def submit(self, key: int, priority: Priority, work: Work) -> None:
        spec = RequestSpec(key=key, model="m", arrived=self.clock.now, client=(key, "app"), size=1, priority=priority)
        self.engines.submit(Request(spec), work)

    def run(self) -> None:
        self.clock.run(lambda time: time > 1000.0, lambda: None)

    def prompt_s(self, engine: int, tokens: int) -> float:
        return tokens / PROMPT_PER_S

    def tokens_s(self, engine: int, tokens: int, running: int) -> float:
        return tokens / TOKENS_PER_S

    def started(self, request: Request) -> None: ...

    def ended(self, request: Request, work: Work, how: str) -> None:
        self.ended_at[request.key] = self.clock.now


def test_work_that_is_parked_goes_on_from_where_it_was() -> None:
    prompt, tokens, urgent = 200, 60, Work(10, 10)
    alone_s = prompt / PROMPT_PER_S + tokens / TOKENS_PER_S
    urgent_s = urgent.prompt / PROMPT_PER_S + urgent.tokens / TOKENS_PER_S
    for at in (1.0, 5.0):  # within the prompt, and within the answer
        engine = OneEngine()
        engine.submit(1, "throughput", Work(prompt, tokens))
        engine.clock.at(at, partial(engine.submit, 2, "latency_critical", urgent))
        engine.run()
        assert engine.ended_at[2] - at < urgent_s + 2 * PARK_S + PREPARE_S
        lost_s = engine.ended_at[1] - alone_s - urgent_s
        assert 0 <= lost_s < 2 * PARK_S + 2 * PREPARE_S + 1 / TOKENS_PER_S
