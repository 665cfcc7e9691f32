"""The scheduler over one engine whose steps take stated seconds: what apps see of each other, without a clock.

`python -m benchmarks.steps_simulated [--seconds S] [--seeds N] [CASE...]` reports, for each app of a case, the time to
its first token, its longest pause inside an answer, its end, and how often its work was parked. The engine prefills
beside its decodes up to a target, and moving a sequence to host memory costs a time for each cell.
"""

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from benchmarks.day import jain
from benchmarks.report import markdown
from benchmarks.scheduled import Clock
from car_client.carctl.bench.figures import spread
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import (
    Action,
    Complete,
    Fail,
    Prompt,
    Remind,
    Request,
    RequestSpec,
    SendHalt,
    SendPark,
    SendPrepare,
    SendResume,
    SendRun,
    SendYield,
)
from car_daemon.scheduler.scheduler import Scheduler

# SmolLM2 on two cores: a decode and each of its rows, a chunk of a prompt and each of its tokens, a cell moved.
DECODE_S, ROW_S = 0.019, 0.001
CHUNK_S, PROMPT_TOKEN_S = 0.008, 0.00125
MOVE_S = 0.9e-6
TARGET_S = 0.120  # of a step in which something decodes
PREPARE_S = 0.002
MODEL = "m"
_ORDERS: dict[type[Action], str] = {SendPark: "park", SendResume: "resume", SendHalt: "halt"}


class Work(NamedTuple):
    """A request's tokens: its prompt, of that the part in the prefix cache, and its answer."""

    prompt: int
    cached: int
    answer: int


@dataclass(eq=False)
class App:
    """A client that sends one request after another in each of its loops, under its own label or a fresh one."""

    name: str
    work: Callable[[Random], Work]
    think: Callable[[Random], float] = lambda _: 0.0
    loops: int = 1
    uid: int = 0
    fresh: bool = False  # a new pid and label with each request
    cancels_after: float | None = None  # seconds; then it sends again
    starts: float = 0.0
    first: list[float] = field(default_factory=list)  # seconds to the first token
    leases: list[float] = field(default_factory=list)  # seconds to the first lease
    pauses: list[float] = field(default_factory=list)  # the longest of each answer
    ends: list[float] = field(default_factory=list)
    tokens: float = 0.0  # of answers and computed prompts
    parkings: int = 0


@dataclass(eq=False)
class _Sequence:
    request: Request
    work: Work
    app: App
    prompt_left: int
    produced: int = 0
    last: float | None = None  # the time of its last token
    pause: float = 0.0

    @property
    def cells(self) -> int:
        return self.work.prompt - self.prompt_left + self.produced


class House:
    """Apps at one engine, whose actions are carried out between its steps."""

    def __init__(self, apps: list[App], seed: int, sequences: int = 4, weights: dict[int, float] | None = None) -> None:
        self.clock = Clock()
        self.scheduler = Scheduler(Gate(), QueueBounds(limit=64), weights=weights)
        self.random = Random(seed)
        self.apps = apps
        self.moving_s = 0.0
        self.busy_s = 0.0
        self.parkings = 0
        self.requests = 0
        self.most_aside = 0
        self._keys = itertools.count(1)
        self._sequences: dict[int, _Sequence] = {}  # of every request without an answer, by key
        self._running: dict[int, _Sequence] = {}
        self._aside: set[int] = set()
        self._yielding: set[int] = set()
        self._orders: list[tuple[str, int]] = []  # for the time between two steps
        self._steps = False
        self.do(self.scheduler.engine_ready(1, EngineOffer(MODEL, sequences, prompt_share=0.25), 0.0))

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        for app in self.apps:
            for _ in range(app.loops):
                self.clock.at(app.starts + app.think(self.random), partial(self.submit, app))
        self.clock.run(lambda time: time > seconds, lambda: None)

    def submit(self, app: App) -> None:
        """Let an app send a request."""
        key, work = next(self._keys), app.work(self.random)
        process, label = (key, f"fresh {key}") if app.fresh else (1, app.name)
        spec = RequestSpec(
            key=key, model=MODEL, arrived=self.clock.now, client=(app.uid, label), process=process, size=1000
        )
        request = Request(spec)
        self._sequences[key] = _Sequence(request, work, app, work.prompt - work.cached)
        self.requests += 1
        self.do(self.scheduler.submit(request, self.clock.now))
        if app.cancels_after is not None:
            self.clock.at(app.cancels_after, partial(self._cancel, key))

    def do(self, actions: list[Action]) -> None:
        """Carry out what the scheduler decided: at once, or before the next step."""
        for action in actions:
            match action:
                case SendPrepare(request, _):
                    self.clock.at(PREPARE_S, partial(self._prepared, request.key))
                case SendRun(request, _):
                    app = self._sequences[request.key].app
                    app.leases.append(self.clock.now - request.spec.arrived)
                    self._orders.append(("run", request.key))
                case SendPark(key, _) | SendResume(key, _) | SendHalt(key, _):
                    self._orders.append((_ORDERS[type(action)], key))
                case SendYield(keys, _):
                    self._yielding = set(keys)
                case Complete(request) | Fail(request, _):
                    self._answered(request, completed=isinstance(action, Complete))
                case Remind(time):
                    self.clock.at(time - self.clock.now, self._expire)
                case _:
                    pass
        if self._orders and not self._steps:
            self._steps = True
            self.clock.at(0.0, self._begin)

    def _prepared(self, key: int) -> None:
        if (sequence := self._sequences.get(key)) is not None:
            prompt = Prompt(sequence.work.prompt, sequence.work.answer)
            self.do(self.scheduler.prepared(key, prompt, self.clock.now))

    def _cancel(self, key: int) -> None:
        self.do(self.scheduler.cancel(key, self.clock.now))

    def _expire(self) -> None:
        self.do(self.scheduler.expire(self.clock.now))

    def _answered(self, request: Request, *, completed: bool) -> None:
        sequence = self._sequences.pop(request.key)
        app = sequence.app
        if completed:
            app.ends.append(self.clock.now - request.spec.arrived)
            app.pauses.append(sequence.pause)
        app.parkings += request.parking.count
        self.clock.at(app.think(self.random), partial(self.submit, app))

    def _begin(self) -> None:
        """Move sequences, and begin a step if there is work for it."""
        moved = self._obey()
        decoding = [each for each in self._running.values() if not each.prompt_left]
        prompts = [each for each in self._running.values() if each.prompt_left]
        if decoding:
            prompts = [each for each in prompts if each.request.key not in self._yielding]
        seconds = DECODE_S + ROW_S * len(decoding) if decoding else 0.0
        chunks: list[tuple[_Sequence, int]] = []
        if prompts:
            # The target grows with the prompts that it is shared by, as the planner's does.
            target = TARGET_S * len(prompts) if decoding else float("inf")
            room = max(16, int((target - seconds - CHUNK_S) / PROMPT_TOKEN_S)) if decoding else 512
            for each in sorted(prompts, key=lambda each: each.prompt_left):
                length = min(room, each.prompt_left)
                if length > 0:
                    chunks.append((each, length))
                    room -= length
            seconds += CHUNK_S + PROMPT_TOKEN_S * sum(length for _, length in chunks)
        self.moving_s += moved
        self.busy_s += seconds + moved
        if decoding or chunks:
            self.clock.at(seconds + moved, partial(self._end, decoding, chunks))
        else:
            self._steps = False

    def _obey(self) -> float:
        """Carry out the orders; return the seconds that moving cells takes."""
        seconds = 0.0
        while self._orders:
            order, key = self._orders.pop(0)
            if order == "halt":
                self._aside.discard(key)
                self._running.pop(key, None)
                self.do(self.scheduler.ended(key, 1, self.clock.now))
                continue
            sequence = self._sequences.get(key)
            if order == "park" and sequence is not None and self._running.pop(key, None) is not None:
                seconds += MOVE_S * sequence.cells
                self._aside.add(key)
                self.parkings += 1
                self.most_aside = max(self.most_aside, len(self._aside))
                self.do(self.scheduler.parked(key, 1, self.clock.now))
            elif order in ("run", "resume") and sequence is not None:
                if order == "resume":
                    seconds += MOVE_S * sequence.cells
                    self._aside.discard(key)
                self._running[key] = sequence
        return seconds

    def _end(self, decoding: list[_Sequence], chunks: list[tuple[_Sequence, int]]) -> None:
        now = self.clock.now
        tokens = [each for each in decoding if each.request.key in self._running]
        for each, length in chunks:
            if each.request.key in self._running:
                each.prompt_left -= length
                each.app.tokens += length * 0.25
                if each.prompt_left:
                    self._advance(each, 0)
                else:
                    tokens.append(each)
        ended = []
        for each in tokens:
            self._take(each, now)
            if each.produced == each.work.answer:
                del self._running[each.request.key]
                ended.append(each)
        for each in ended:
            self.do(self.scheduler.ended(each.request.key, 1, now))
        self.do(self.scheduler.stepped(1))
        self._begin()

    def _take(self, sequence: _Sequence, now: float) -> None:
        if sequence.last is None:
            sequence.app.first.append(now - sequence.request.spec.arrived)
        else:
            sequence.pause = max(sequence.pause, now - sequence.last)
        sequence.last = now
        sequence.produced += 1
        sequence.app.tokens += 1
        self._advance(sequence, 1)

    def _advance(self, sequence: _Sequence, tokens: int) -> None:
        work = sequence.work
        cached = work.cached if not sequence.request.prompt_done else 0
        done = work.prompt - sequence.prompt_left
        self.scheduler.advanced(sequence.request.key, done, tokens, cached)


def around(mean: float, share: float = 0.3) -> Callable[[Random], int]:
    """Return a draw of about this many."""
    return lambda random: max(1, round(random.uniform(mean * (1 - share), mean * (1 + share))))


def works(prompt: float, cached: float, answer: float, share: float = 0.3) -> Callable[[Random], Work]:
    """Return a draw of works: new tokens of the prompt, tokens in the cache, tokens of the answer."""
    new, old, out = around(prompt, share), around(cached, share), around(answer, share)

    def draw(random: Random) -> Work:
        cached_tokens = old(random) if cached else 0
        return Work(new(random) + cached_tokens, cached_tokens, out(random))

    return draw


def thinks(mean: float) -> Callable[[Random], float]:
    """Return a draw of pauses between requests."""
    return lambda random: random.expovariate(1 / mean)


def house() -> list[App]:
    """Return 4 agents, a person who chats and a program that summarizes, all of one user."""
    agents = [App(f"agent {number}", works(90, 1000, 70, 0.9), thinks(0.7)) for number in range(4)]
    chat, texts = works(60, 300, 50, 0.5), works(700, 0, 80, 0.6)
    return [*agents, App("person", chat, thinks(2.0)), App("summarizer", texts, thinks(0.3))]


def desk() -> list[App]:
    """Return the apps of `carctl bench --house`, of one user."""
    return [
        App("person", works(35, 250, 72, 0.33), lambda random: random.uniform(3, 7)),
        App("editor", works(12, 120, 24, 0.0), thinks(1.2)),
        App("home", works(25, 60, 20), lambda _: 10.0),
        App("agent", works(115, 900, 64, 0.0), lambda random: random.uniform(0.3, 2.0)),
        App("sub-agent", works(70, 900, 48, 0.0), lambda random: random.uniform(0.2, 1.0), loops=2),
        App("summarizer", works(800, 0, 120, 0.3), lambda random: random.uniform(0.5, 1)),
        App("embedder", works(500, 0, 1, 0.1), lambda _: 5.0),
    ]


def conversations() -> list[App]:
    """Return 12 people who send short turns without a pause."""
    return [App(f"person {number}", works(20, 200, 48), thinks(0.01)) for number in range(12)]


def equal() -> list[App]:
    """Return 8 programs with answers of 500 tokens."""
    return [App(f"program {number}", works(30, 0, 500, 0.0)) for number in range(8)]


def singles() -> list[App]:
    """Return a flood of answers of 3,500 tokens of one label, and another label that decides by single tokens."""
    return [App("flood", works(30, 0, 3500, 0.0), loops=100), App("decides", works(20, 0, 1), thinks(0.5), starts=5.0)]


def short_beside_floods() -> list[App]:
    """Return a label with short requests beside a label with 64 of 60 tokens."""
    return [App("flood", works(20, 0, 60), loops=64), App("short", works(10, 0, 8), thinks(0.1), starts=2.0)]


def polite() -> list[App]:
    """Return users that send now and then at full load, and two who always have work."""
    users = [App(f"polite {uid}", works(80, 0, 60, 0.8), thinks(12.0), uid=uid) for uid in range(10, 22)]
    return [*users, *(App(f"busy {uid}", works(80, 0, 250, 0.5), loops=4, uid=uid) for uid in (1, 2))]


def honest() -> list[App]:
    """Return 3 users with two loops of 200 tokens each."""
    return [App(f"honest {uid}", works(20, 0, 200, 0.0), loops=2, uid=uid) for uid in (1, 2, 3)]


def fresh_small() -> list[App]:
    """Return 3 honest users and one with 32 small requests, each of a fresh pid and label."""
    return [*honest(), App("gamer", works(20, 0, 8, 0.0), loops=32, uid=9, fresh=True)]


def split() -> list[App]:
    """Return 3 honest users and one that cuts its answers into pieces."""
    return [*honest(), App("gamer", works(20, 180, 20, 0.0), loops=2, uid=9)]


def fresh_long() -> list[App]:
    """Return 3 honest users and one with 16 long requests, each of a fresh pid and label."""
    return [*honest(), App("gamer", works(20, 0, 500, 0.0), loops=16, uid=9, fresh=True)]


def resends() -> list[App]:
    """Return 3 honest users and one that cancels and sends again."""
    return [*honest(), App("gamer", works(20, 0, 200, 0.0), loops=8, uid=9, cancels_after=0.4)]


def light() -> list[App]:
    """Return 3 honest users and one that asks for little now and then."""
    return [*honest(), App("light", works(20, 0, 24, 0.0), thinks(1.0), uid=9)]


def starving() -> list[App]:
    """Return a label with two long answers beside fresh labels of its own user."""
    fresh = App("fresh", works(20, 0, 120), thinks(0.1), loops=6, fresh=True)
    return [fresh, App("long", works(30, 0, 1500, 0.0), loops=2, starts=3.0)]


def tiny_beside_prompts() -> list[App]:
    """Return a label with tiny requests beside 60 prompts of one label, and streams that hold all sequences."""
    prompts = App("prompts", works(900, 0, 20, 0.3), loops=60)
    streams = [App(f"stream {number}", works(30, 0, 2500, 0.0)) for number in range(4)]
    # By then each stream has had its first turn.
    return [prompts, *streams, App("tiny", works(10, 0, 3), thinks(0.4), starts=20.0)]


def churning() -> list[App]:
    """Return a label with long answers beside 6 short answers at a time, each of a fresh label of its own user."""
    fresh = App("fresh", works(20, 0, 40, 0.5), thinks(0.05), loops=6, fresh=True)
    return [fresh, App("long", works(400, 0, 900, 0.2), loops=2, starts=3.0)]


def decides(think_s: float = 0.3) -> App:
    """Return a program that asks one decision of 300 tokens after the other."""
    return App("decides", works(300, 0, 1, 0.0), thinks(think_s), starts=3.0)


def decides_alone() -> list[App]:
    """Return the decisions alone."""
    return [decides()]


def decides_beside_a_program() -> list[App]:
    """Return decisions beside a program whose 8 long answers hold every sequence."""
    return [App("streams", works(30, 0, 4000, 0.0), loops=8), decides()]


def decides_beside_programs() -> list[App]:
    """Return decisions that take less than a ninth, beside 8 programs that hold every sequence."""
    return [*(App(f"stream {number}", works(30, 0, 4000, 0.0)) for number in range(8)), decides(4.0)]


def decides_beside_agents() -> list[App]:
    """Return decisions beside 4 agents of another user, who hold every sequence."""
    return [*(App(f"agent {each}", works(90, 1000, 70, 0.9), thinks(0.7), uid=5) for each in range(4)), decides()]


CASES: dict[str, tuple[Callable[[], list[App]], int]] = {
    "house": (house, 4),
    "desk": (desk, 4),
    "conversations": (conversations, 4),
    "equal": (equal, 4),
    "singles": (singles, 4),
    "short": (short_beside_floods, 8),
    "polite": (polite, 4),
    "fresh small": (fresh_small, 4),
    "split": (split, 4),
    "fresh long": (fresh_long, 4),
    "resends": (resends, 4),
    "light": (light, 4),
    "starving": (starving, 4),
    "churning": (churning, 2),
    "tiny": (tiny_beside_prompts, 4),
    "decides alone": (decides_alone, 8),
    "decides beside a program": (decides_beside_a_program, 8),
    "decides beside programs": (decides_beside_programs, 8),
    "decides beside agents": (decides_beside_agents, 4),
}
HEADINGS = (
    "case, app",
    "answers",
    "lease p50, p95 s",
    "first token p50, p95",
    "longest pause p50, p95",
    "end mean, p95",
    "share %",
)


def rows_of(name: str, houses: list[House]) -> Iterator[list[str]]:
    """Yield a row for each kind of app, over all seeds."""
    kinds: defaultdict[str, list[App]] = defaultdict(list)
    for each in houses:
        for app in each.apps:
            kinds[app.name.rstrip("0123456789 ")].append(app)
    total = sum(app.tokens for apps in kinds.values() for app in apps)
    for kind, apps in kinds.items():
        ends = [end for app in apps for end in app.ends]
        yield [
            f"{name}, {kind}",
            str(len(ends)),
            *(_two([each for app in apps for each in values(app)]) for values in (_leases, _first, _pauses)),
            f"{sum(ends) / max(1, len(ends)):.2f}, {spread(ends).p95 if ends else 0:.2f}",
            f"{100 * sum(app.tokens for app in apps) / total:.1f}",
        ]


def _leases(app: App) -> list[float]:
    return app.leases


def _first(app: App) -> list[float]:
    return app.first


def _pauses(app: App) -> list[float]:
    return app.pauses


def _two(values: list[float]) -> str:
    if not values:
        return "-"
    figures = spread(values)
    return f"{figures.p50:.2f}, {figures.p95:.2f}"


def main() -> None:
    """Simulate and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    rows: list[list[str]] = []
    totals: list[str] = []
    for name in options.cases:
        apps, sequences = CASES[name]
        houses = [House(apps(), seed, sequences) for seed in range(options.seeds)]
        for each in houses:
            each.run(options.seconds)
        rows += rows_of(name, houses)
        served = [app.tokens for app in houses[0].apps if app.tokens]
        parkings, requests = sum(each.parkings for each in houses), sum(each.requests for each in houses)
        busy, moving = sum(each.busy_s for each in houses), sum(each.moving_s for each in houses)
        tokens = sum(app.tokens for each in houses for app in each.apps)
        totals.append(
            f"{name}: {parkings / requests:.2f} parkings a request, {100 * moving / busy:.1f}% of the time moving, "
            f"{tokens / busy:.1f} tokens/s, at most {max(each.most_aside for each in houses)} aside, "
            f"Jain {jain(served):.3f}"
        )
    print(markdown(list(HEADINGS), rows))
    print()
    print("\n".join(totals))


if __name__ == "__main__":
    main()
