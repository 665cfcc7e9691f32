"""A simulated day of scheduling: 50 users of whom two cheat, heavy-tailed lengths, engines that die.

`python -m benchmarks.day [--hours H]` reports the waits of users, Jain's index of service by weight among the users
that always had work, and every invariant that broke. Time is simulated; a day takes some minutes.
"""

import argparse
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from benchmarks.record import this_machine, write_record
from benchmarks.table import markdown
from car_client.carctl.load.figures import spread
from car_daemon.scheduler.actions import Action, Complete, Fail, Halt, Park, Prepare, Resume, Run
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Prompt, Request, RequestSpec, State
from car_daemon.scheduler.routing.replicas import EngineOffer
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.infer import Priority

# Two replicas of one model, an idle model, and one whose engine answers nothing.
MODELS = {"chat": 2, "small": 1, "stuck": 1}
SEQUENCES = 8
TOKEN_S, PROMPT_TOKEN_S = 0.02, 0.002
PREPARE_S, PARK_S, RESTART_S = 0.002, 0.05, 8.0
DEATHS_PER_HOUR = 4.0
STEP_TOKENS = 64  # of an answer between two reports
POLITE, BUSY, CHEATS = range(1000, 1040), range(1040, 1048), (1048, 1049)
WEIGHTS = {1040: 2.0, 1041: 2.0, 1048: 1.0}
ARRIVALS_PER_S = 0.004  # of each polite user
BACKLOG, FLOOD = 12, 100  # requests that a busy user and a cheat have in flight
BOUNDS = QueueBounds(limit=64)


class Job(NamedTuple):
    """A request's model, class, names and lengths."""

    model: str
    priority: Priority
    process: int
    label: str
    prompt: int
    tokens: int


class Day:
    """The scheduler, engines that take their time, and users that submit."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.gate = Gate()
        self.scheduler = Scheduler(self.gate, BOUNDS, weights=WEIGHTS)
        self.now = 0.0
        self.requests: dict[int, tuple[Request, Job]] = {}
        self.running: dict[int, int] = {}  # the start that a request's events belong to, by key
        self.engines: dict[int, str] = {}
        self.waits: defaultdict[tuple[int, Priority], list[float]] = defaultdict(list)  # seconds to a lease, by user
        self.served: Counter[int] = Counter()  # tokens of the model `chat`, by user
        self.ends: Counter[tuple[int, str]] = Counter()
        self.broken: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._engine_numbers = itertools.count(1)

    def run(self, seconds: float) -> None:
        """Let all engines start, all users come, and the time pass."""
        for model, count in MODELS.items():
            for _ in range(count):
                self.start_engine(model)
        for uid in POLITE:
            self.at(self.random.expovariate(ARRIVALS_PER_S), partial(self.arrive, uid))
        for uid in (*BUSY, *CHEATS):
            for _ in range(BACKLOG if uid in BUSY else FLOOD):
                self.submit(uid, "chat")
        for uid in CHEATS:
            for _ in range(FLOOD):
                self.submit(uid, "stuck")
        self.at(self.random.expovariate(DEATHS_PER_HOUR / 3600), self.kill)
        while self._events and self._events[0][0] <= seconds:
            self.now, _, event = heappop(self._events)
            event()
            self.check()

    def at(self, delay: float, event: Callable[[], None]) -> None:
        """Let something happen after a delay."""
        heappush(self._events, (self.now + delay, next(self._numbers), event))

    # Users.

    def arrive(self, uid: int) -> None:
        """Submit a polite user's request, and let the next one come."""
        self.submit(uid, self.random.choice(["chat", "chat", "small"]))
        self.at(self.random.expovariate(ARRIVALS_PER_S), partial(self.arrive, uid))

    def submit(self, uid: int, model: str) -> None:
        """Submit one request of a user."""
        key = next(self._numbers)
        job = self.job(uid, key, model)
        spec = RequestSpec(
            key=key,
            model=job.model,
            arrived=self.now,
            client=(uid, job.label),
            process=job.process,
            size=1000,
            priority=job.priority,
            timeout=600.0 if job.model == "stuck" else None,
        )
        request = Request(spec)
        self.requests[key] = request, job
        if spec.timeout is not None:
            self.at(spec.timeout, lambda: self.do(self.scheduler.expire(self.now)))
        self.do(self.scheduler.submit(request, self.now))

    def job(self, uid: int, key: int, model: str) -> Job:
        """Return what a user submits; a cheat has a fresh label and process each time."""
        random = self.random
        tokens = min(2000, max(1, int(random.lognormvariate(4.0, 1.2))))
        prompt = min(4000, max(1, int(random.lognormvariate(5.0, 1.0))))
        if uid in CHEATS:
            return Job(model, "latency_critical", key, f"fresh {key}", prompt, tokens)
        if uid in BUSY:
            return Job(model, "latency_critical", uid * 2 + key % 2, f"{key % 3}", prompt, tokens)
        priority: Priority = "throughput" if random.random() < 0.1 else "latency_critical"
        return Job(model, priority, uid, "app", prompt, tokens)

    # Engines.

    def start_engine(self, model: str) -> None:
        """Let an engine become ready."""
        number = next(self._engine_numbers)
        self.engines[number] = model
        self.do(self.scheduler.engine_ready(number, EngineOffer(model, SEQUENCES), self.now))

    def kill(self) -> None:
        """Let one engine die, and another start in its place."""
        number = self.random.choice(sorted(self.engines))
        model = self.engines.pop(number)
        for key in [key for key in self.running if self.requests[key][0].engine == number]:
            del self.running[key]
        self.do(self.scheduler.engine_lost(number, self.now))
        self.at(RESTART_S, lambda: self.start_engine(model))
        self.at(self.random.expovariate(DEATHS_PER_HOUR / 3600), self.kill)

    def do(self, actions: Iterable[Action]) -> None:
        """Carry out what the scheduler decided."""
        for action in actions:
            match action:
                case Prepare(request, engine):
                    self.at(PREPARE_S, partial(self.prepared, request.key, engine))
                case Run(request, engine):
                    user = request.spec.client[0], request.spec.priority
                    self.waits[user].append(self.now - request.spec.arrived)
                    delay = self.requests[request.key][1].prompt * PROMPT_TOKEN_S
                    self.step(request.key, engine, 0, delay)
                case Park(key, engine):
                    self.at(PARK_S, partial(self.park, key, engine))
                case Resume(key, engine):
                    self.step(key, engine, 0, 0.0)
                case Halt(key, engine):
                    self.running.pop(key, None)
                    self.at(PARK_S, partial(self.release, key, engine))
                case Complete(request):
                    self.ended(request, "completed")
                case Fail(request, reason):
                    self.ended(request, reason)
                case _:
                    pass

    def prepared(self, key: int, engine: int) -> None:
        """Report a prompt as prepared, unless its engine died."""
        if engine in self.engines:
            _, job = self.requests[key]
            self.do(self.scheduler.prepared(key, Prompt(job.prompt, job.tokens), self.now))

    def step(self, key: int, engine: int, tokens: int, delay: float) -> None:
        """Let a request's next tokens come after a delay; a stuck engine sends none."""
        start = self.running[key] = next(self._numbers)
        if self.engines[engine] != "stuck":
            self.at(delay + tokens * TOKEN_S, lambda: self.advance(key, engine, tokens, start))

    def advance(self, key: int, engine: int, tokens: int, start: int) -> None:
        """Report tokens, and the end where it is reached."""
        if self.running.get(key) != start:
            return
        request, job = self.requests[key]
        self.scheduler.advanced(key, job.prompt, tokens, self.now)
        left = job.tokens - request.produced
        if left > 0:
            self.step(key, engine, min(left, STEP_TOKENS), 0.0)
        else:
            self.release(key, engine)

    def park(self, key: int, engine: int) -> None:
        """Report a request as parked, unless it ended."""
        if self.running.pop(key, None) is not None and engine in self.engines:
            self.do(self.scheduler.parked(key, engine, self.now))

    def release(self, key: int, engine: int) -> None:
        """Report the end of a request."""
        self.running.pop(key, None)
        if engine in self.engines:
            self.do(self.scheduler.ended(key, engine, self.now))

    def ended(self, request: Request, how: str) -> None:
        """Count an answer; a user that always has work submits the next."""
        uid = request.spec.client[0]
        _, job = self.requests[request.key]
        self.broken["two answers"] += request.state is not State.ENDED
        self.ends[uid, how] += 1
        if request.model == "chat" and how == "completed":
            self.served[uid] += job.prompt + job.tokens
        if uid in BUSY or uid in CHEATS:
            self.at(0.001, partial(self.submit, uid, request.model))

    def check(self) -> None:
        """Count the invariants that do not hold now."""
        scheduler, gate = self.scheduler, self.gate
        self.broken["more leases than sequences"] += any(gate.leased(m) > (gate.declared(m) or 0) for m in MODELS)
        if len(scheduler.backlog) > BOUNDS.limit:
            came_back = sum(request.retried for request in scheduler.requests.values())
            self.broken["more places than the limit"] += len(scheduler.backlog) > BOUNDS.limit + came_back
        self.broken["totals"] += scheduler.totals.in_flight != len(scheduler.requests)


def jain(values: list[float]) -> float:
    """Return Jain's index: 1 where all are equal, 1/n where one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def main() -> None:
    """Simulate and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    machine, hours = this_machine(), parser.parse_args().hours
    day = Day(Random(1))
    day.run(hours * 3600)
    rows = [
        row(day, "polite", POLITE, "latency_critical"),
        row(day, "polite, throughput work", POLITE, "throughput"),
        row(day, "busy", BUSY, "latency_critical"),
        row(day, "cheats", CHEATS, "latency_critical"),
    ]
    print(markdown(["users", "requests", "wait p50 s", "p95", "p99", "tokens of each"], rows))
    index = jain([day.served[uid] / WEIGHTS.get(uid, 1.0) for uid in (*BUSY, *CHEATS)])
    broken = {name: count for name, count in day.broken.items() if count}
    lost = {how: count for (uid, how), count in day.ends.items() if uid in POLITE and how != "completed"}
    print(f"\nJain's index of service by weight, users with work at all times: {index:.4f}")
    print(f"requests: {day.scheduler.totals.received:,}; invariants broken: {broken or 'none'}")
    print(f"requests of polite users that were not completed: {lost or 'none'}")
    users = {f"{uid} {priority}": spread(waits) for (uid, priority), waits in sorted(day.waits.items())}
    print(write_record("day", machine, {"users": users, "jain": index, "broken": broken, "lost": lost}))


def row(day: Day, name: str, users: Collection[int], priority: Priority) -> list[str]:
    """Return the waits of some users' requests of one class, and the tokens that one of these users was served."""
    waits = [wait for uid in users for wait in day.waits[uid, priority]]
    figures = spread(waits)
    tokens = sum(day.served[uid] for uid in users) / len(users)
    return [
        name,
        f"{len(waits):,}",
        *(f"{value:.2f}" for value in (figures.p50, figures.p95, figures.p99)),
        f"{tokens:,.0f}",
    ]


if __name__ == "__main__":
    main()
