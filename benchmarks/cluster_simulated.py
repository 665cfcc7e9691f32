"""The real gate, queue and router with 1 to 1,000 invented engines of three kinds, 10,000 clients and nodes that fail.

`python -m benchmarks.cluster_simulated [--quick]` prints waits, fairness, lost requests and what a gate costs. Engines,
nodes and clients exist in simulated time only; microseconds are measured at the real scheduler while it decides.
"""

import argparse
import gc
import itertools
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from msgspec import Struct, field

from benchmarks.day import jain
from benchmarks.report import markdown, this_machine, write_record
from benchmarks.scheduled import Clock, SimulatedEngines, Work
from car_client.carctl.bench.figures import Spread, spread
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import Request, RequestSpec, Session, State
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.capacity import Pressure
from car_protocol.infer import Priority

ENGINES = (1, 10, 100, 1000)
INTERACTIVE_LOAD = 0.6  # of what all engines can do
WEIGHTS = {2000: 1.0, 2001: 1.0, 2002: 2.0, 2003: 2.0, 2004: 4.0}  # the users of the batch clients
INTERACTIVE = range(1000, 1045)
CANCELLED = 0.01  # of the interactive requests, by their clients
BOUNDS = QueueBounds(limit=10**6, max_bytes=2**50)
MODEL = "m"

# Seconds until a node that is cut off is noticed, and from then until it is back.
NOTICED_S, BACK_S = 4.6, (60.0, 180.0)
# Of each node, the mean hours between two shortages of memory, and their seconds.
PRESSED_HOURS, PRESSED_S = 2.0, 60.0
SHORTAGES: tuple[Pressure, ...] = ("some", "critical")

# Of the natural logarithms of the tokens of a prompt and of an answer: the means.
INTERACTIVE_LENGTHS, BATCH_LENGTHS = (5.5, 4.0), (6.0, 5.0)
LATEST_S = 86_400.0  # after the last request was sent, all have their answers or never get one

# Microseconds of the daemon's CPU beside the scheduler's: a request (decoded, sent to its engine, logged, answered),
# a frame of an engine over TLS, and a token to its client.
REQUEST_US, FRAME_US, TOKEN_US = 400.0, 34.0, 22.0
USABLE_OF_A_CORE = 0.6  # so that the event loop is late by less than 5 ms


class Preset(Struct, frozen=True):
    """The size of a run; every second client always has work, the others send now and then."""

    requests: int  # of interactive clients, about
    seconds: float  # simulated, at least
    clients: int = 10_000
    node_hours: float = 2.0  # mean time between two failures of a node

    @property
    def batch_clients(self) -> int:
        """The clients that always have work."""
        return self.clients // 2


FULL, QUICK = Preset(20_000, 120.0), Preset(3_000, 10.0)


class Kind(Struct, frozen=True):
    """A kind of engine: its sequences, tokens per second of each when all run, and of a prompt."""

    name: str
    sequences: int
    tokens_per_s: float
    prompt_per_s: float

    def rate(self, running: int) -> float:
        """Return the tokens per second of a sequence; a lone one is half as fast again as one among all."""
        alone = (self.sequences - running) / max(1, self.sequences - 1)
        return self.tokens_per_s * (1 + max(0.0, alone) / 2)

    def offer(self, host: str) -> EngineOffer:
        """Return what such an engine declares."""
        rates = tuple(running * self.rate(running) for running in range(1, self.sequences + 1))
        return EngineOffer(MODEL, self.sequences, "cpu", 8192, rates, rates[-1] / self.prompt_per_s, host)


CPU, SMALL, GPU = Kind("CPU", 4, 12, 120), Kind("small GPU", 8, 25, 800), Kind("GPU", 16, 40, 4000)
# The engines of the nodes, in turn: ten engines on nine nodes.
NODES = ((SMALL,), (CPU,), (CPU,), (SMALL,), (CPU,), (CPU,), (SMALL,), (CPU,), (GPU, GPU))


class Node(Struct, eq=False):
    """A machine: its kinds of engines, and the numbers of those that are up."""

    host: str
    kinds: tuple[Kind, ...]
    engines: list[int] = field(default_factory=list)


def nodes_of(engines: int) -> list[Node]:
    """Return nodes with so many engines in all."""
    nodes: list[Node] = []
    left = engines
    while left > 0:
        kinds = NODES[len(nodes) % len(NODES)][:left]
        nodes.append(Node(f"n{len(nodes)}", kinds))
        left -= len(kinds)
    return nodes


def metered(name: str) -> Callable[..., Any]:
    """Return an event of the scheduler that counts what it costs."""
    event = getattr(Scheduler, name)

    def counted(self: "MeteredScheduler", *args: Any) -> Any:
        begun = time.process_time_ns()
        result = event(self, *args)
        self.spent_ns += time.process_time_ns() - begun
        return result

    return counted


class MeteredScheduler(Scheduler):
    """The daemon's scheduler, whose events count what they cost; `advanced` is a part of a token's cost."""

    def __init__(self) -> None:
        super().__init__(Gate(), BOUNDS, weights=WEIGHTS)
        self.spent_ns = 0  # nanoseconds of CPU

    submit = metered("submit")
    prepared = metered("prepared")
    parked = metered("parked")
    ended = metered("ended")
    cancel = metered("cancel")
    allocate = metered("allocate")
    engine_ready = metered("engine_ready")
    engine_lost = metered("engine_lost")


class KindSpeeds:
    """The speeds of engines by their kinds, and the tokens and frames that they sent."""

    def __init__(self) -> None:
        self.kinds: dict[int, Kind] = {}  # of every engine that ever was up, by number
        self.tokens = 0
        self.frames = 0.0
        self.over = 0  # steps of engines that ran more than they declared

    def prompt_s(self, engine: int, tokens: int) -> float:
        """Return the seconds of a prompt."""
        return tokens / self.kinds[engine].prompt_per_s

    def tokens_s(self, engine: int, tokens: int, running: int) -> float:
        """Return the seconds of a sequence's next tokens; a frame has one of every running sequence."""
        self.tokens += tokens
        self.frames += tokens / running
        self.over += running > self.kinds[engine].sequences
        return tokens / self.kinds[engine].rate(running)


class Traffic:
    """The requests of the clients: interactive ones that come at random, and batch clients that always have work."""

    def __init__(self, random: Random, clients: int) -> None:
        self._random = random
        self._clients = clients  # interactive ones
        self._keys = itertools.count(1)

    def interactive(self, now: float) -> tuple[RequestSpec, Work]:
        """Return a streamed request of some client; every second client goes on with its conversation."""
        client = self._random.randrange(self._clients)
        uid = INTERACTIVE[client % len(INTERACTIVE)]
        prompt, tokens = lengths(self._random, INTERACTIVE_LENGTHS)
        if client % 2:
            return self._spec(now, uid, client, "latency_critical"), Work(prompt, tokens, streams=True)
        shared = [uid * 2**20 + number for number in range(4)]
        own = [-client * 2**20 - number for number in range(prompt // 64)]
        session = (uid, f"{client}")
        return self._spec(now, uid, client, "latency_critical", session), Work(prompt, tokens, (*shared, *own), True)

    def batch(self, now: float, client: int) -> tuple[RequestSpec, Work]:
        """Return a batch client's next request."""
        uid = list(WEIGHTS)[client % len(WEIGHTS)]
        return self._spec(now, uid, client, "throughput"), Work(*lengths(self._random, BATCH_LENGTHS))

    def _spec(
        self, now: float, uid: int, client: int, priority: Priority, session: Session | None = None
    ) -> RequestSpec:
        return RequestSpec(
            key=next(self._keys),
            model=MODEL,
            arrived=now,
            client=(uid, "app"),
            process=client,
            size=1000,
            priority=priority,
            session=session,
        )


def lengths(random: Random, means: tuple[float, float]) -> tuple[int, int]:
    """Return the tokens of a prompt and of an answer, around e to the power of each mean."""
    prompt, tokens = (int(random.lognormvariate(mean, 0.8)) for mean in means)
    return min(max(1, prompt), 4000), min(max(1, tokens), 1000)


def requests_per_s(nodes: Iterable[Node], means: tuple[float, float]) -> float:
    """Return how many requests of such lengths all engines answer in a second."""
    random = Random(0)
    samples = [lengths(random, means) for _ in range(2000)]
    prompt, tokens = (statistics.fmean(sample[part] for sample in samples) for part in (0, 1))
    kinds = [kind for node in nodes for kind in node.kinds]
    return sum(kind.sequences / (prompt / kind.prompt_per_s + tokens / kind.tokens_per_s) for kind in kinds)


class Nodes:
    """Nodes that are cut off and come back, and that run short of memory, each at random."""

    def __init__(
        self, nodes: list[Node], random: Random, clock: Clock, engines: SimulatedEngines, hours: float
    ) -> None:
        self.failures = 0
        self._hours = hours  # between two failures of a node
        self._nodes = nodes
        self._random = random
        self._clock = clock
        self._engines = engines
        self._numbers = itertools.count(1)

    def start_all(self, speeds: KindSpeeds) -> None:
        """Let all nodes come up, with their failures to come."""
        for node in self._nodes:
            self._start(node, speeds)
            self._after(PRESSED_HOURS * 3600, partial(self._press, node))

    def _start(self, node: Node, speeds: KindSpeeds) -> None:
        """Let a node's engines become ready, until its next failure."""
        for kind in node.kinds:
            number = next(self._numbers)
            node.engines.append(number)
            speeds.kinds[number] = kind
            self._engines.start(number, kind.offer(node.host))
        self._after(self._hours * 3600, partial(self._cut, node, speeds))

    def _after(self, mean_s: float, event: Callable[[], None]) -> None:
        self._clock.at(self._random.expovariate(1 / mean_s), event)

    def _cut(self, node: Node, speeds: KindSpeeds) -> None:
        """Cut a node off, which the daemon notices by a heartbeat that is late; it comes back after a while."""
        self.failures += 1
        for number in node.engines:
            self._engines.silence(number)
        self._clock.at(NOTICED_S, partial(self._lose, node))
        self._clock.at(NOTICED_S + self._random.uniform(*BACK_S), partial(self._start, node, speeds))

    def _lose(self, node: Node) -> None:
        for number in node.engines:
            self._engines.lose(number)
        node.engines.clear()

    def _press(self, node: Node) -> None:
        """Let a node run short of memory for a while."""
        self._set_pressure(node, self._random.choice(SHORTAGES))
        self._clock.at(PRESSED_S, partial(self._set_pressure, node, "none"))
        self._after(PRESSED_HOURS * 3600, partial(self._press, node))

    def _set_pressure(self, node: Node, level: Pressure) -> None:
        scheduler = self._engines.scheduler
        scheduler.gate.press(node.host, level)
        self._engines.do(scheduler.allocate(self._clock.now))


class Account:
    """What became of the requests, and the invariants that did not hold."""

    def __init__(self, clock: Clock, scheduler: Scheduler) -> None:
        self.waits: defaultdict[Priority, list[float]] = defaultdict(list)  # seconds to the first lease
        self.served: Counter[int] = Counter()  # answer tokens and what the prompts cost, by user with batch work
        self.ends: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.turns: Counter[bool] = Counter()  # of conversations, by whether it ran where the turn before ran
        self._homes: dict[Session, int | None] = {}  # the last engine of each conversation
        self._clock = clock
        self._scheduler = scheduler

    def started(self, request: Request) -> None:
        """Note the wait for the first lease, and whether a conversation stayed where it was."""
        if request.retried:
            return
        spec = request.spec
        self.waits[spec.priority].append(self._clock.now - spec.arrived)
        if spec.session is not None:
            if spec.session in self._homes:
                self.turns[self._homes[spec.session] == request.engine] += 1
            self._homes[spec.session] = request.engine

    def ended(self, request: Request, work: Work, how: str) -> None:
        """Count an answer."""
        self.broken["a second answer"] += request.state is not State.ENDED
        self.ends[how] += 1
        if request.spec.client[0] in WEIGHTS and how == "completed":
            self.served[request.spec.client[0]] += work.tokens + round(work.prompt * request.prompt_share)

    def check(self) -> None:
        """Count the totals that do not add up now."""
        self.broken["totals"] += self._scheduler.totals.in_flight != len(self._scheduler.requests)


class Clients:
    """Clients that send requests, and take the answers into their account."""

    def __init__(self, random: Random, clock: Clock, speeds: KindSpeeds, traffic: Traffic, per_s: float) -> None:
        self.scheduler = MeteredScheduler()
        self.engines = SimulatedEngines(self.scheduler, clock, speeds, self)
        self.account = Account(clock, self.scheduler)
        self.leaving = False  # no client sends another request
        self._random = random
        self._clock = clock
        self._traffic = traffic
        self._per_s = per_s  # interactive requests

    def arrive(self) -> None:
        """Submit an interactive request, some of which their clients cancel, and let the next one come."""
        if self.leaving:
            return
        spec, work = self._traffic.interactive(self._clock.now)
        self.engines.submit(Request(spec), work)
        if self._random.random() < CANCELLED:
            self._clock.at(self._random.expovariate(0.2), partial(self._cancel, spec.key))
        self._clock.at(self._random.expovariate(self._per_s), self.arrive)

    def send_batch(self, client: int) -> None:
        """Submit a batch client's next request."""
        if not self.leaving:
            spec, work = self._traffic.batch(self._clock.now, client)
            self.engines.submit(Request(spec), work)

    def started(self, request: Request) -> None:
        """Note a request that got a lease."""
        self.account.started(request)

    def ended(self, request: Request, work: Work, how: str) -> None:
        """Note an answer; a batch client sends its next request."""
        self.account.ended(request, work, how)
        if request.spec.priority == "throughput":
            self._clock.at(0.001, partial(self.send_batch, request.spec.process))

    def _cancel(self, key: int) -> None:
        self.engines.do(self.scheduler.cancel(key, self._clock.now))


class Waits(Struct, frozen=True):
    """Seconds to the first lease, by class."""

    urgent: Spread
    throughput: Spread


class Cost(Struct, frozen=True):
    """What one gate costs: of the scheduler measured, of the rest of the daemon by the figures above."""

    gate_us: float  # of CPU for a request, in the scheduler
    daemon_us: float  # for a request with its frames and tokens, in the whole daemon
    requests_per_s: float
    tokens_per_s: float

    @property
    def core(self) -> float:
        """The part of a core that one gate would need for all of it."""
        return self.requests_per_s * self.daemon_us / 1e6

    @property
    def gates(self) -> int:
        """The gates that the load needs."""
        return max(1, math.ceil(self.core / USABLE_OF_A_CORE))


class Figures(Struct, frozen=True):
    """A run without its cost; the same for the same seed."""

    engines: int
    nodes: int
    sequences: int
    seconds: float  # simulated, in which clients sent requests
    failures: int  # of nodes
    requests: int
    waits: Waits
    jain: float  # of the service by weight of the users that always have work
    at_home: float  # the part of the turns of conversations that ran where the turn before ran
    ends: dict[str, int]
    lost: int  # requests without an answer once all engines have nothing to do
    broken: dict[str, int]  # invariants, with how often each did not hold


def simulated(engines: int, preset: Preset, seed: int = 1) -> tuple[Figures, Cost]:
    """Let clients send about so many requests, for at least so many seconds, and everything end."""
    random, clock, speeds, nodes = Random(seed), Clock(), KindSpeeds(), nodes_of(engines)
    per_s = INTERACTIVE_LOAD * requests_per_s(nodes, INTERACTIVE_LENGTHS)
    traffic = Traffic(random, preset.clients - preset.batch_clients)
    clients = Clients(random, clock, speeds, traffic, per_s)
    account, scheduler = clients.account, clients.scheduler
    places = Nodes(nodes, random, clock, clients.engines, preset.node_hours)
    places.start_all(speeds)
    sequences = sum(kind.sequences for node in nodes for kind in node.kinds)
    for number in range(max(preset.batch_clients, 2 * sequences)):
        clients.send_batch(number % preset.batch_clients)
    clients.arrive()
    seconds = max(preset.seconds, preset.requests / per_s)
    clock.run(lambda time: time > seconds, account.check)
    answered, tokens, served = account.ends.total(), speeds.tokens, account.served.copy()
    clients.leaving = True
    latest = 10 * seconds + LATEST_S
    clock.run(lambda time: not clients.engines.requests or time > latest, account.check)
    requests = scheduler.totals.received
    broken = account.broken + Counter({"more than declared": speeds.over})
    figures = Figures(
        engines=engines,
        nodes=len(nodes),
        sequences=sequences,
        seconds=seconds,
        failures=places.failures,
        requests=requests,
        waits=Waits(spread(account.waits["latency_critical"]), spread(account.waits["throughput"])),
        jain=jain([served[uid] / weight for uid, weight in WEIGHTS.items()]),
        at_home=account.turns[True] / max(1, account.turns.total()),
        ends=dict(sorted(account.ends.items())),
        lost=requests - account.ends.total(),
        broken={name: count for name, count in broken.items() if count},
    )
    gate_us = scheduler.spent_ns / 1000 / requests
    daemon_us = REQUEST_US + gate_us + (speeds.frames * FRAME_US + speeds.tokens * TOKEN_US) / requests
    return figures, Cost(gate_us, daemon_us, answered / seconds, tokens / seconds)


def main() -> None:
    """Simulate every number of engines and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer requests: under a minute")
    preset = QUICK if parser.parse_args().quick else FULL
    machine, runs = this_machine(), list[tuple[Figures, Cost]]()
    gc.disable()  # the collector runs outside the daemon's requests
    for engines in ENGINES:
        gc.collect()
        runs.append(simulated(engines, preset))
    print(markdown(CLIENT_HEADINGS, [client_row(figures) for figures, _ in runs]))
    print(f"\n{markdown(GATE_HEADINGS, [gate_row(figures, cost) for figures, cost in runs])}\n")
    broken = {figures.engines: figures.broken for figures, _ in runs if figures.broken}
    print(
        f"requests without an answer: {sum(figures.lost for figures, _ in runs)}; invariants broken: {broken or 'none'}"
    )
    print(write_record("cluster_simulated", machine, [{"figures": each, "cost": cost} for each, cost in runs]))


CLIENT_HEADINGS = (
    "engines",
    "nodes",
    "sequences",
    "requests",
    "failures",
    "urgent: wait p50 / p95 / p99, s",
    "throughput: wait p50 / p95 / p99, s",
    "Jain",
    "turns at home",
    "`engine_lost`",
    "lost",
)


def client_row(figures: Figures) -> list[str]:
    """Return what clients got."""
    return [
        *(f"{count:,}" for count in (figures.engines, figures.nodes, figures.sequences, figures.requests)),
        f"{figures.failures:,}",
        waits(figures.waits.urgent),
        waits(figures.waits.throughput),
        f"{figures.jain:.4f}",
        f"{figures.at_home:.0%}",
        f"{figures.ends.get('engine_lost', 0):,}",
        f"{figures.lost:,}",
    ]


def waits(figures: Spread) -> str:
    """Return the percentiles of seconds."""
    return " / ".join(
        f"{each:,.2f}" if each < 100 else f"{each:,.0f}" for each in (figures.p50, figures.p95, figures.p99)
    )


GATE_HEADINGS = (
    "engines",
    "requests/s",
    "tokens/s",
    "gate, us a request",
    "daemon, us a request",
    "of a core",
    "requests/s of a full core: gate alone",
    "whole daemon",
    "gates",
)


def gate_row(figures: Figures, cost: Cost) -> list[str]:
    """Return what a gate costs."""
    return [
        f"{figures.engines:,}",
        f"{cost.requests_per_s:,.1f}",
        f"{cost.tokens_per_s:,.0f}",
        f"{cost.gate_us:,.0f}",
        f"{cost.daemon_us:,.0f}",
        f"{cost.core:.1%}",
        f"{1e6 / cost.gate_us:,.0f}",
        f"{1e6 / cost.daemon_us:,.0f}",
        f"{cost.gates}",
    ]


if __name__ == "__main__":
    main()
