"""The loop thread: commands in, plan → decode → sample, one frame out a step."""

import time
from collections.abc import Callable
from typing import NoReturn

from car_base.host.files import WeightsOverwritten
from car_base.ipc.frames import (
    Forget,
    FromEngine,
    Halt,
    Overwritten,
    Park,
    Parked,
    RequestUpdate,
    Resume,
    Run,
    RunTexts,
    SetThreads,
    SpareMemory,
    StepDone,
    Yield,
)
from car_base.ipc.inbox import Inbox
from car_base.ipc.ranges import MAX_UPDATES
from car_engine.batching.costs import StepCosts
from car_engine.batching.planner import StepPlanner
from car_engine.batching.reuse.expected import Expected
from car_engine.batching.sequences import SequenceTable
from car_engine.images.ahead import EncodeAhead
from car_engine.images.encoder import Encoded
from car_engine.runner.idle_storing import IdleStoring, Storage
from car_engine.runner.running import RunningRequests
from car_engine.runner.stepper import Stepper
from car_engine.runner.texts import Texts

Command = (
    Run | RunTexts | EncodeAhead | Encoded | Forget | Park | Resume | Halt | Yield | SetThreads | SpareMemory | Storage
)
# Requests that are sent together arrive within a millisecond; a first token takes some tens of them.
_TIMEOUT_S = 0.003


class Commands(Inbox[Command]):
    """Commands in order; prompts that come together start together if the engine is idle."""

    def __init__(self, timeout: float = _TIMEOUT_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._timeout = timeout
        self.clock = clock
        self._announced = 0  # Key of the newest request in preparation; written by the intake thread.
        self.expected = Expected()  # Prompts that were prepared and wait.
        self._absent = 0  # Key of the newest announced request that did not come in time: it is not awaited again.

    def follow(self, left: int, patience: float) -> list[Command]:
        """Return all commands that came after so many requests left their sequences, while others still run.

        A request that waits for a sequence gets the free one, a parked request too, and clients often send the next
        request at once: when it comes before the next decode, it need not wait for that. So wait for as many requests
        as left, at most `patience` seconds.
        """
        commands = self.receive(wait=False)
        deadline = self.clock() + min(patience, self._timeout)
        while _takers(commands) < left and (wait_s := deadline - self.clock()) > 0:
            commands += self.receive(wait=True, timeout=wait_s)
        return commands

    def announce(self, key: int) -> None:
        """Note that a prompt is being prepared; younger requests have higher keys."""
        self._announced = key

    def gather(self, room: int, idle: Callable[[], float | None] = lambda: None) -> list[Command]:
        """Block for a command, and below `room` requests shortly for announced requests; return all that came.

        The first chunk of one prompt delays all others, so reading them together takes less time. Each announced
        request is awaited once. Meanwhile `idle` is called, and again after the seconds that it returns.
        """
        commands: list[Command] = []
        while not commands:
            commands = self.receive(wait=True, timeout=idle())
        deadline = self.clock() + self._timeout
        while True:
            keys = [command.key for command in commands if isinstance(command, Run)]
            announced = self._announced
            if not 0 < len(keys) < room or announced <= max(*keys, self._absent):
                return commands
            left = deadline - self.clock()
            if left <= 0:
                self._absent = announced
                return commands
            commands += self.receive(wait=True, timeout=left)


def _takers(commands: list[Command]) -> int:
    return sum(isinstance(command, Run | Resume) for command in commands)


class ThreadCount:
    """Report every change to the contexts; costs of steps are learned for each number of threads.

    llama.cpp's attention over more than 256 cells sums up by threads, so that their number changes results: while it is
    fixed, the engine computes with the number that it was loaded with.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._loaded = self._divided = costs.threads
        self._fixed = False
        self._contexts: list[Callable[[int], None]] = []

    def __repr__(self) -> str:
        return f"<ThreadCount {self._costs.threads} of {self._loaded}{' fixed' if self._fixed else ''}>"

    def add(self, set_threads: Callable[[int], None]) -> None:
        """Set the threads of a context now and with every change."""
        self._contexts.append(set_threads)
        set_threads(self._costs.threads)

    def set(self, threads: int) -> None:
        """Compute with this number of threads from the next step on, or once it is not fixed any more."""
        self._divided = threads
        self._apply()

    def fix(self, fixed: bool) -> None:
        """Fix the number of threads, or not."""
        if fixed != self._fixed:
            self._fixed = fixed
            self._apply()

    def _apply(self) -> None:
        threads = self._loaded if self._fixed else self._divided
        self._costs.set_threads(threads)
        for set_threads in self._contexts:
            set_threads(threads)


class CheckedResults:
    """Sends frames, but none that ends an answer once the model's file was overwritten."""

    def __init__(self, send: Callable[[FromEngine], None], is_overwritten: Callable[[], bool]) -> None:
        self._send = send
        self._is_overwritten = is_overwritten

    def send(self, message: FromEngine) -> None:
        """Send a frame; raises WeightsOverwritten in place of the end of an answer, once the daemon was notified."""
        if isinstance(message, StepDone):
            for update in message.updates:
                if update.end is not None and self._is_overwritten():
                    self._send(Overwritten())
                    raise WeightsOverwritten
        self._send(message)


class LoopProgress:
    """The loop's part of a heartbeat; written by the loop, read by the intake thread."""

    def __init__(self) -> None:
        self.step = 0
        self.step_started: float | None = None


class EngineLoop:
    """Run all requests with a lease in every step."""

    def __init__(
        self,
        *,
        commands: Commands,
        running: RunningRequests,
        texts: Texts,
        table: SequenceTable,
        planner: StepPlanner,
        stepper: Stepper,
        threads: ThreadCount,
        send: Callable[[FromEngine], None],
    ) -> None:
        self._commands = commands
        self._running = running
        self._texts = texts
        self._table = table
        self._planner = planner
        self._stepper = stepper
        self._phases = stepper.phases
        self._threads = threads
        self._storing = IdleStoring(running.cache, table, commands.clock)
        self._send = send
        self._stepped = 0.0  # the end of the last step
        self._step_s = 0.0  # its seconds
        self._parked = 0  # requests that were parked since the loop last waited for who takes their sequences
        self._reported_s = 0.0  # seconds of all phases that frames have reported
        self.progress = LoopProgress()

    def __repr__(self) -> str:
        return f"<EngineLoop step={self.progress.step} {self._table!r} {self._running!r}>"

    @property
    def counters(self) -> dict[str, float]:
        """Totals of the steps and of the running requests so far, and the seconds of each phase."""
        seconds = {f"{phase}_s": passed for phase, passed in self._phases.seconds.items()}
        return {**self._stepper.counters, **self._running.counters, **self._texts.counters, **seconds}

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn(self.next_commands())

    def next_commands(self) -> list[Command]:
        """Return the commands that came; blocks for a command while there is no work, and shortly if requests ended."""
        ended, self._running.ended = self._running.ended, 0
        if not (self._table.busy or self._texts.busy):
            return self._commands.gather(len(self._table.sequences), self._storing.wait_s)
        return self._followers(ended) if ended else self._commands.receive(wait=False)

    def turn(self, commands: list[Command]) -> None:
        """Apply commands, do one step and report it."""
        self._phases.begin()
        updates: list[RequestUpdate] = []
        for command in commands:
            updates += self._apply(command)
        while self._parked:
            # Whoever takes the sequence of a parked request is read before the next decode.
            parked, self._parked = self._parked, 0
            for command in self._followers(parked):
                updates += self._apply(command)
        if commands:
            self._running.cache.settle()
        self._phases.end("intake")
        if self._table.busy:
            started = self._phases.now
            self.progress.step += 1
            self.progress.step_started = started
            self._threads.fix(self._table.reproducing)
            step = self._planner.plan(self._table, started, started - self._stepped)
            self._phases.end("plan")
            updates += self._running.advance(self._stepper.execute(step))
            self._running.cache.settle()
            self._stepped = self._phases.end("text")
            self._step_s = self._stepped - started
            self._texts.yield_to(self._step_s)
            self.progress.step_started = None
        if self._texts.busy and (self._texts.due or not self._table.busy):
            updates += self._texts.step(writes=self._table.writes)
            self._phases.end("embed")
        if updates:
            cache = self._running.cache
            for first in range(0, len(updates), MAX_UPDATES):
                worked_s = sum(self._phases.seconds.values())
                seconds, self._reported_s = worked_s - self._reported_s, worked_s
                part = updates[first : first + MAX_UPDATES]
                self._send(StepDone(self.progress.step, part, cache.resident, seconds))
                cache.resident = []
            self._phases.end("send")

    def _followers(self, left: int) -> list[Command]:
        """Return the commands that came, and shortly wait for as many requests as left their sequences."""
        others = len(self._running.seats.requests)
        # All others together wait no longer than a request would for their decode.
        return self._commands.follow(left, self._step_s / others if others else 0.0)

    def _apply(self, command: Command) -> list[RequestUpdate]:
        running, texts = self._running, self._texts
        match command:
            case Run():
                return running.start(command)
            case RunTexts():
                return texts.start(command)
            case Park(key):
                parked = running.park(key)
                self._parked += parked
                if parked or texts.park(key):
                    self._send(Parked(key))
            case Resume(key):
                return [] if texts.resume(key) else running.resume(key)
            case Halt(key):
                return texts.halt(key) or running.halt(key, deadline=command.deadline)
            case EncodeAhead() | Encoded() | Forget():
                return running.handle_images(command)
            case _:
                self._set(command)
        return []

    def _set(self, command: Yield | SetThreads | SpareMemory | Storage) -> None:
        match command:
            case Yield(keys):
                self._running.let_yield(keys)
                self._texts.let_yield(keys)
            case SetThreads(threads):
                self._threads.set(threads)
            case SpareMemory(spare):
                self._running.cache.spare_memory(spare)
            case _:
                self._storing.apply(command)
