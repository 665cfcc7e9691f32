"""A simulated day of scheduling: 50 users of whom two cheat, heavy-tailed lengths, engines that die.

`python -m benchmarks.day [--hours H]` reports the waits of users, Jain's index of service by weight among the users
that always had work, and every invariant that broke. Time is simulated; a day takes some minutes.
"""

import argparse
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection
from functools import partial
from random import Random
from typing import NamedTuple

from benchmarks.report import markdown, this_machine, write_record
from benchmarks.scheduled import Clock, SimulatedEngines, Work
from car_client.carctl.bench.figures import spread
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import Request, RequestSpec, State
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.infer import Priority

# Two replicas of one model, an idle model, and one whose engine answers nothing.
MODELS = {"chat": 2, "small": 1, "stuck": 1}
SEQUENCES = 8
TOKEN_S, PROMPT_TOKEN_S = 0.02, 0.002
RESTART_S = 8.0
DEATHS_PER_HOUR = 4.0
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
    work: Work


class Day:
    """Users that submit, and engines that die."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clock = Clock()
        self.scheduler = Scheduler(Gate(), BOUNDS, weights=WEIGHTS)
        self.engines = SimulatedEngines(self.scheduler, self.clock, self, self)
        self.models: dict[int, str] = {}  # by engine that is up
        self.waits: defaultdict[tuple[int, Priority], list[float]] = defaultdict(list)  # seconds to a lease, by user
        self.served: Counter[int] = Counter()  # tokens of completed requests for the model `chat`, by user
        self.ends: Counter[tuple[int, str]] = Counter()
        self.broken: Counter[str] = Counter()
        self._keys = itertools.count(1)
        self._engine_numbers = itertools.count(1)

    def run(self, seconds: float) -> None:
        """Let all engines start, all users come, and the time pass."""
        for model, count in MODELS.items():
            for _ in range(count):
                self.start_engine(model)
        for uid in POLITE:
            self.clock.at(self.random.expovariate(ARRIVALS_PER_S), partial(self.arrive, uid))
        for uid in (*BUSY, *CHEATS):
            for _ in range(BACKLOG if uid in BUSY else FLOOD):
                self.submit(uid, "chat")
        for uid in CHEATS:
            for _ in range(FLOOD):
                self.submit(uid, "stuck")
        self.clock.at(self.random.expovariate(DEATHS_PER_HOUR / 3600), self.kill)
        self.clock.run(lambda time: time > seconds, self.check)

    def service(self, uid: int) -> int:
        """Return the tokens of the model `chat` that a user was served, those of unfinished requests included."""
        ours = [
            each for each in self.scheduler.requests.values() if each.model == "chat" and each.spec.client[0] == uid
        ]
        return self.served[uid] + sum(each.prompt_done + each.produced for each in ours)

    # Users.

    def arrive(self, uid: int) -> None:
        """Submit a polite user's request, and let the next one come."""
        self.submit(uid, self.random.choice(["chat", "chat", "small"]))
        self.clock.at(self.random.expovariate(ARRIVALS_PER_S), partial(self.arrive, uid))

    def submit(self, uid: int, model: str) -> None:
        """Submit one request of a user."""
        key = next(self._keys)
        job = self.job(uid, key, model)
        spec = RequestSpec(
            key=key,
            model=job.model,
            arrived=self.clock.now,
            client=(uid, job.label),
            process=job.process,
            size=1000,
            priority=job.priority,
            timeout=600.0 if job.model == "stuck" else None,
        )
        if spec.timeout is not None:
            self.clock.at(spec.timeout, lambda: self.engines.do(self.scheduler.expire(self.clock.now)))
        self.engines.submit(Request(spec), job.work)

    def job(self, uid: int, key: int, model: str) -> Job:
        """Return what a user submits; a cheat has a fresh label and process each time."""
        random = self.random
        tokens = min(2000, max(1, int(random.lognormvariate(4.0, 1.2))))
        work = Work(min(4000, max(1, int(random.lognormvariate(5.0, 1.0)))), tokens)
        if uid in CHEATS:
            return Job(model, "latency_critical", key, f"fresh {key}", work)
        if uid in BUSY:
            return Job(model, "latency_critical", uid * 2 + key % 2, f"{key % 3}", work)
        priority: Priority = "throughput" if random.random() < 0.1 else "latency_critical"
        return Job(model, priority, uid, "app", work)

    # Engines.

    def start_engine(self, model: str) -> None:
        """Let an engine become ready."""
        number = next(self._engine_numbers)
        self.models[number] = model
        self.engines.start(number, EngineOffer(model, SEQUENCES))

    def kill(self) -> None:
        """Let one engine die, and another start in its place."""
        number = self.random.choice(sorted(self.models))
        model = self.models.pop(number)
        self.engines.lose(number)
        self.clock.at(RESTART_S, lambda: self.start_engine(model))
        self.clock.at(self.random.expovariate(DEATHS_PER_HOUR / 3600), self.kill)

    def prompt_s(self, engine: int, tokens: int) -> float:
        """Return the seconds of a prompt."""
        return tokens * PROMPT_TOKEN_S

    def tokens_s(self, engine: int, tokens: int, running: int) -> float | None:
        """Return the seconds of tokens; a stuck engine sends none."""
        return None if self.models[engine] == "stuck" else tokens * TOKEN_S

    # Accounts.

    def started(self, request: Request) -> None:
        """Note the wait for a lease."""
        user = request.spec.client[0], request.spec.priority
        self.waits[user].append(self.clock.now - request.spec.arrived)

    def ended(self, request: Request, work: Work, how: str) -> None:
        """Count an answer; a user that always has work submits the next."""
        uid = request.spec.client[0]
        self.broken["two answers"] += request.state is not State.ENDED
        self.ends[uid, how] += 1
        if request.model == "chat" and how == "completed":
            self.served[uid] += work.prompt + work.tokens
        if uid in BUSY or uid in CHEATS:
            self.clock.at(0.001, partial(self.submit, uid, request.model))

    def check(self) -> None:
        """Count the invariants that do not hold now."""
        scheduler, gate = self.scheduler, self.scheduler.gate
        occupancies = [gate.occupancy(model) for model in MODELS]
        self.broken["more leases than sequences"] += any(each.leased > (each.declared or 0) for each in occupancies)
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
    index = jain([day.service(uid) / WEIGHTS.get(uid, 1.0) for uid in (*BUSY, *CHEATS)])
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
