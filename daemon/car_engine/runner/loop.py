"""The loop thread: commands in, plan → decode → sample, one frame out a step."""

from collections.abc import Callable
from typing import NoReturn, Protocol

from car_base.ipc.frames import (
    Forget,
    FromEngine,
    Halt,
    Park,
    Parked,
    RequestUpdate,
    Resume,
    Run,
    RunTexts,
    SetThreads,
    StepDone,
)
from car_base.ipc.ranges import MAX_UPDATES
from car_engine.batching.planner import StepPlanner
from car_engine.batching.sequences import SequenceTable
from car_engine.images.ahead import EncodeAhead
from car_engine.images.encoder import Encoded
from car_engine.runner.commands import Command, Commands
from car_engine.runner.idle_storing import IdleStoring
from car_engine.runner.running import RunningRequests
from car_engine.runner.stepper import Stepper
from car_engine.runner.texts import Texts


class Threads(Protocol):
    """The number of threads of the engine's contexts."""

    def set(self, threads: int) -> None:
        """Compute with this number of threads, unless it is fixed."""
        ...

    def fix(self, fixed: bool) -> None:
        """Fix the number of threads, or not."""
        ...


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
        threads: Threads,
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
        self.progress = LoopProgress()

    def __repr__(self) -> str:
        return f"<EngineLoop step={self.progress.step} {self._table!r} {self._running!r}>"

    @property
    def counters(self) -> dict[str, float]:
        """Totals of the steps and of the running requests so far, and the seconds of each phase."""
        seconds = {f"{phase}_s": passed for phase, passed in self._phases.seconds.items()}
        return {**self._stepper.counters, **self._running.counters, **seconds}

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn(self.next_commands())

    def next_commands(self) -> list[Command]:
        """Return the commands that came; blocks for one while there is no work, and shortly where requests ended."""
        ended, self._running.ended = self._running.ended, 0
        if not (self._table.busy or self._texts.busy):
            return self._commands.gather(len(self._table.sequences), self._storing.wait_s)
        streams = len(self._running.seats.generations)
        if not (ended and streams):
            return self._commands.receive(wait=False)
        # All streams together wait no longer than a request would for their decode.
        return self._commands.follow(ended, self._step_s / streams)

    def turn(self, commands: list[Command]) -> None:
        """Apply commands, do one step and report it."""
        self._phases.begin()
        updates: list[RequestUpdate] = []
        for command in commands:
            updates += self._apply(command)
        if commands:
            self._running.cache.supply_followers()
        self._phases.end("intake")
        if self._table.busy:
            started = self._phases.now
            self.progress.step += 1
            self.progress.step_started = started
            self._threads.fix(self._table.reproducing)
            step = self._planner.plan(self._table, started, started - self._stepped)
            self._phases.end("plan")
            updates += self._running.advance(self._stepper.execute(step))
            self._running.cache.supply_followers()
            self._stepped = self._phases.end("text")
            self._step_s = self._stepped - started
            self._texts.yield_to(self._step_s)
            self.progress.step_started = None
        if self._texts.busy and (self._texts.due or not self._table.busy):
            updates += self._texts.step()
            self._phases.end("embed")
        if updates:
            cache = self._running.cache
            for first in range(0, len(updates), MAX_UPDATES):
                self._send(StepDone(self.progress.step, updates[first : first + MAX_UPDATES], cache.resident))
                cache.resident = []
            self._phases.end("send")

    def _apply(self, command: Command) -> list[RequestUpdate]:
        running, texts = self._running, self._texts
        match command:
            case Run():
                return running.start(command)
            case RunTexts():
                return texts.start(command)
            case Park(key):
                if texts.park(key) or running.park(key):
                    self._send(Parked(key))
            case Resume(key):
                return [] if texts.resume(key) else running.resume(key)
            case Halt(key):
                return texts.halt(key) or running.halt(key, deadline=command.deadline)
            case EncodeAhead() | Encoded() | Forget():
                return running.handle_images(command)
            case SetThreads(threads):
                self._threads.set(threads)
            case _:
                self._storing.apply(command)
        return []
