"""The scheduler on a simulated clock: engines take stated times, clients submit requests."""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from car_daemon.scheduler.actions import Action, Complete, Fail, Halt, Park, Prepare, Resume, Run
from car_daemon.scheduler.request import Prompt, Request
from car_daemon.scheduler.routing.replicas import EngineOffer
from car_daemon.scheduler.scheduler import Scheduler

PREPARE_S, PARK_S = 0.002, 0.05
STEP_TOKENS = 64  # of an answer between two reports


class Work(NamedTuple):
    """A request's lengths in tokens, the blocks of its prompt, and whether its client gets the answer in parts."""

    prompt: int
    tokens: int
    blocks: tuple[int, ...] = ()
    streams: bool = False


class Speeds(Protocol):
    """The speeds of engines, by number."""

    def prompt_s(self, engine: int, tokens: int) -> float:
        """Return the seconds of a prompt."""
        ...

    def tokens_s(self, engine: int, tokens: int, running: int) -> float | None:
        """Return the seconds of the next tokens of one of the running sequences; None if the engine answers nothing."""
        ...


class Watcher(Protocol):
    """The account of what became of the requests."""

    def started(self, request: Request) -> None:
        """Note a request that got a lease and begins."""
        ...

    def ended(self, request: Request, work: Work, how: str) -> None:
        """Note a request's answer."""
        ...


class Clock:
    """Simulated seconds, and the events to come in their order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)  # equal times keep their order

    def at(self, delay: float, event: Callable[[], None]) -> None:
        """Let something happen after a delay."""
        heappush(self._events, (self.now + delay, next(self._numbers), event))

    def run(self, until: Callable[[float], bool], after: Callable[[], None]) -> None:
        """Let events happen up to the first time that is `until` the end; call `after` after each."""
        while self._events and not until(self._events[0][0]):
            self.now, _, event = heappop(self._events)
            event()
            after()


class SimulatedEngines:
    """Carries out the scheduler's actions and reports their ends when their time has come."""

    def __init__(self, scheduler: Scheduler, clock: Clock, speeds: Speeds, watcher: Watcher) -> None:
        self.scheduler = scheduler
        self.requests: dict[int, tuple[Request, Work]] = {}  # without an answer, by key
        self.leased: dict[int, set[int]] = {}  # keys by engine that is up: the sequences in use
        self._clock = clock
        self._speeds = speeds
        self._watcher = watcher
        self._starts: dict[int, int] = {}  # of running requests: the start that their next event belongs to
        self._numbers = itertools.count(1)

    def start(self, number: int, offer: EngineOffer) -> None:
        """Let an engine become ready."""
        self.leased[number] = set()
        self.do(self.scheduler.engine_ready(number, offer, self._clock.now))

    def silence(self, number: int) -> None:
        """Let an engine report nothing more, of which the scheduler is not notified."""
        for key in self.leased.pop(number):
            self._starts.pop(key, None)

    def lose(self, number: int) -> None:
        """Notify the scheduler of an engine's death."""
        if number in self.leased:
            self.silence(number)
        self.do(self.scheduler.engine_lost(number, self._clock.now))

    def submit(self, request: Request, work: Work) -> None:
        """Submit a request."""
        self.requests[request.key] = request, work
        self.do(self.scheduler.submit(request, self._clock.now))

    def do(self, actions: Iterable[Action]) -> None:
        """Carry out what the scheduler decided."""
        at = self._clock.at
        for action in actions:
            match action:
                case Prepare(request, engine):
                    at(PREPARE_S, partial(self._prepared, request.key, engine))
                case Run(request, engine):
                    self._watcher.started(request)
                    work = self.requests[request.key][1]
                    self._step(request.key, engine, 0, self._speeds.prompt_s(engine, work.prompt))
                case Park(key, engine):
                    at(PARK_S, partial(self._park, key, engine))
                case Resume(key, engine):
                    self._step(key, engine, 0, 0.0)
                case Halt(key, engine):
                    self._starts.pop(key, None)
                    at(PARK_S, partial(self._release, key, engine))
                case Complete(request):
                    self._end(request, "completed")
                case Fail(request, reason):
                    self._end(request, reason)
                case _:
                    pass

    def _prepared(self, key: int, engine: int) -> None:
        """Report a prompt as prepared, unless its engine died or its client left."""
        if engine in self.leased and key in self.requests:
            _, work = self.requests[key]
            self.do(self.scheduler.prepared(key, Prompt(work.prompt, work.tokens, work.blocks), self._clock.now))

    def _step(self, key: int, engine: int, tokens: int, delay: float) -> None:
        """Let a request's next tokens come after a delay; an engine that is silent sends none."""
        if engine not in self.leased:
            return
        self.leased[engine].add(key)
        start = self._starts[key] = next(self._numbers)
        seconds = self._speeds.tokens_s(engine, tokens, len(self.leased[engine]))
        if seconds is not None:
            self._clock.at(delay + seconds, lambda: self._advance(key, engine, tokens, start))

    def _advance(self, key: int, engine: int, tokens: int, start: int) -> None:
        """Report tokens, and the end where it is reached."""
        if self._starts.get(key) != start:
            return
        request, work = self.requests[key]
        request.sent = request.sent or (work.streams and tokens > 0)
        self.scheduler.advanced(key, work.prompt, tokens, self._clock.now)
        left = work.tokens - request.produced
        if left > 0:
            self._step(key, engine, min(left, STEP_TOKENS), 0.0)
        else:
            self._release(key, engine)

    def _park(self, key: int, engine: int) -> None:
        """Report a request as parked, unless it ended."""
        if self._starts.pop(key, None) is not None and engine in self.leased:
            self.leased[engine].remove(key)
            self.do(self.scheduler.parked(key, engine, self._clock.now))

    def _release(self, key: int, engine: int) -> None:
        """Report the end of a request."""
        self._starts.pop(key, None)
        if engine in self.leased:
            self.leased[engine].discard(key)
            self.do(self.scheduler.ended(key, engine, self._clock.now))

    def _end(self, request: Request, how: str) -> None:
        _, work = self.requests.pop(request.key)
        self._watcher.ended(request, work, how)
