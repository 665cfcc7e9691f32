"""The scheduler on a simulated clock: engines take stated times, clients submit requests."""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import (
    Action,
    Complete,
    Fail,
    Prompt,
    Request,
    SendHalt,
    SendPark,
    SendPrepare,
    SendResume,
    SendRun,
)
from car_daemon.scheduler.scheduler import Scheduler

PREPARE_S, PARK_S = 0.002, 0.05
STEP_TOKENS = 64  # of an answer between two reports


class Work(NamedTuple):
    """A request's lengths in tokens, the blocks of its prompt, and whether its client gets the answer in parts."""

    prompt: int
    tokens: int
    blocks: tuple[int, ...] = ()
    streams: bool = False


class _Step(NamedTuple):
    """The seconds of a running request's prompt and of its next tokens, which its engine reports together."""

    start: int  # the start that the report belongs to
    begun: float
    prompt_s: float
    tokens_s: float
    tokens: int

    def done(self, now: float) -> int:
        """Return the tokens of the answer so far."""
        share = (now - self.begun - self.prompt_s) / self.tokens_s if self.tokens_s else 0.0
        return int(self.tokens * min(1.0, max(0.0, share)))

    def prompt_left(self, now: float) -> float:
        """Return the seconds that the prompt still takes."""
        return max(0.0, self.begun + self.prompt_s - now)


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
        self._steps: dict[int, _Step] = {}  # of running requests, by key
        self._prompts_left: dict[int, float] = {}  # seconds, of parked requests whose prompt was not done, by key
        self._numbers = itertools.count(1)

    def start(self, number: int, offer: EngineOffer) -> None:
        """Let an engine become ready."""
        self.leased[number] = set()
        self.do(self.scheduler.engine_ready(number, offer, self._clock.now))

    def silence(self, number: int) -> None:
        """Let an engine report nothing more, of which the scheduler is not notified."""
        for key in self.leased.pop(number):
            self._steps.pop(key, None)

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
                case SendPrepare(request, engine):
                    at(PREPARE_S, partial(self._prepared, request.key, engine))
                case SendRun(request, engine):
                    self._watcher.started(request)
                    work = self.requests[request.key][1]
                    self._prompts_left.pop(request.key, None)  # of an engine that is lost
                    self._step(request.key, engine, 0, self._speeds.prompt_s(engine, work.prompt))
                case SendPark(key, engine):
                    at(PARK_S, partial(self._park, key, engine))
                case SendResume(key, engine):
                    left = self.requests[key][1].tokens - self.requests[key][0].produced
                    self._step(key, engine, min(left, STEP_TOKENS), self._prompts_left.pop(key, 0.0))
                case SendHalt(key, engine):
                    self._steps.pop(key, None)
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
        seconds = self._speeds.tokens_s(engine, tokens, len(self.leased[engine]))
        start = next(self._numbers)
        self._steps[key] = _Step(start, self._clock.now, delay, seconds or 0.0, 0 if seconds is None else tokens)
        if seconds is not None:
            self._clock.at(delay + seconds, lambda: self._advance(key, engine, tokens, start))

    def _advance(self, key: int, engine: int, tokens: int, start: int) -> None:
        """Report tokens, and the end where it is reached."""
        if key not in self._steps or self._steps[key].start != start:
            return
        request, work = self.requests[key]
        self._report(key, tokens)
        left = work.tokens - request.produced
        if left > 0:
            self._step(key, engine, min(left, STEP_TOKENS), 0.0)
        else:
            self._release(key, engine)

    def _report(self, key: int, tokens: int) -> None:
        """Report tokens of an answer."""
        request, work = self.requests[key]
        request.sent = request.sent or (work.streams and tokens > 0)
        self.scheduler.advanced(key, work.prompt, tokens)

    def _park(self, key: int, engine: int) -> None:
        """Report a request as parked with what it has done so far, unless it ended."""
        step = self._steps.pop(key, None)
        if step is None or engine not in self.leased:
            return
        now = self._clock.now
        self.leased[engine].remove(key)
        if left := step.prompt_left(now):
            self._prompts_left[key] = left
        elif done := step.done(now):
            self._report(key, done)
        self.do(self.scheduler.parked(key, engine, now))

    def _release(self, key: int, engine: int) -> None:
        """Report the end of a request."""
        self._steps.pop(key, None)
        if engine in self.leased:
            self.leased[engine].discard(key)
            self.do(self.scheduler.ended(key, engine, self._clock.now))

    def _end(self, request: Request, how: str) -> None:
        _, work = self.requests.pop(request.key)
        self._watcher.ended(request, work, how)
