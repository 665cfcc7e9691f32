"""The loop thread: commands in, plan → decode → sample, one frame out a step."""

from collections.abc import Callable
from typing import Protocol

from car_daemon.engine.batching.planner import StepPlanner
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.engine.frames import FromEngine, Halt, Park, Parked, Quit, Refused, Resume, Row, Run, StepDone
from car_daemon.engine.generation import Generation, Vocabulary
from car_daemon.engine.inbox import Inbox
from car_daemon.engine.parking import ParkingLot
from car_daemon.engine.stepper import Context, Outcome, Stepper
from car_protocol.infer import Sampling

Command = Run | Park | Resume | Halt | Quit


# The sequence of a row about a request that was parked.
NO_SEQUENCE = -1


class Samplers(Protocol):
    """Builds and frees the sampler of one request."""

    def build(self, sampling: Sampling, seed: int) -> object:
        """Return a sampler that `Context.sample` takes."""
        ...

    def free(self, sampler: object) -> None:
        """Give the sampler's memory back."""
        ...


class Pulse:
    """What the heartbeat tells about the loop; written by the loop, read by the intake thread."""

    def __init__(self) -> None:
        self.step = 0
        self.step_started: float | None = None


class EngineLoop:
    """Runs requests that hold a lease, all of them in every step."""

    def __init__(
        self,
        *,
        context: Context,
        samplers: Samplers,
        vocabulary: Vocabulary,
        table: SequenceTable,
        planner: StepPlanner,
        lot: ParkingLot,
        make_stepper: Callable[[Callable[[Sequence], object]], Stepper],
        inbox: Inbox[Command],
        send: Callable[[FromEngine], None],
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._samplers = samplers
        self._vocabulary = vocabulary
        self._table = table
        self._planner = planner
        self._lot = lot
        self._stepper = make_stepper(self._sampler_of)
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self.pulse = Pulse()
        # Mutable state: the request of every busy sequence, by sequence number and by request key.
        self._running: dict[int, Generation] = {}
        self._sequences: dict[int, Sequence] = {}

    @property
    def counters(self) -> dict[str, float]:
        """Totals of the steps so far."""
        return self._stepper.counters

    def run(self) -> None:
        """Work until told to quit."""
        while self.turn(self._inbox.take(wait=not self._table.busy)):
            pass

    def turn(self, commands: list[Command]) -> bool:
        """Apply commands, run one step and report it; False once told to quit."""
        rows: list[Row] = []
        for command in commands:
            match command:
                case Run():
                    self._start(command)
                case Park():
                    self._park(command)
                case Resume():
                    self._resume(command)
                case Halt():
                    rows += self._halt(command)
                case Quit():
                    return False
        if self._table.busy:
            rows += self._step()
        if rows:
            self._send(StepDone(self.pulse.step, rows))
        return True

    def _start(self, run: Run) -> None:
        prompt = memoryview(run.tokens).cast("i").tolist()
        sequence = self._table.start(prompt)
        if sequence is None:
            # The gate leased more than this engine declared: a defect, answered as one.
            self._send(Refused(run.key, "internal_error", {}))
            return
        sampler = self._samplers.build(run.sampling, run.seed)
        generation = Generation(run, sampler, self._vocabulary, len(prompt), self._clock())
        self._running[sequence.number] = generation
        self._sequences[run.key] = sequence

    def _park(self, park: Park) -> None:
        sequence = self._sequences.pop(park.key, None)
        if sequence is None:
            return
        self._lot.park(sequence, self._running.pop(sequence.number))
        self._empty(sequence)
        self._send(Parked(park.key))

    def _resume(self, resume: Resume) -> None:
        parked = self._lot.take(resume.key)
        if parked is None:
            return
        sequence = self._table.start(parked.prompt)
        if sequence is None:
            raise RuntimeError("a parked request was leased a sequence that this engine does not have")
        self._running[sequence.number] = parked.generation
        self._sequences[resume.key] = sequence
        self._lot.restore(parked, sequence)

    def _halt(self, halt: Halt) -> list[Row]:
        sequence = self._sequences.get(halt.key)
        if sequence is not None:
            text = self._running[sequence.number].finish("deadline") if halt.deadline else ""
            return [self._release(sequence, text)]
        parked = self._lot.take(halt.key)
        if parked is None:
            return []
        generation = parked.generation
        text = generation.finish("deadline") if halt.deadline else ""
        self._samplers.free(generation.sampler)
        return [Row(halt.key, NO_SEQUENCE, text, 0, parked.cells, None, generation.end(self._clock()))]

    def _step(self) -> list[Row]:
        self.pulse.step += 1
        self.pulse.step_started = self._clock()
        outcome = self._stepper.run(self._planner.plan(self._table))
        rows = self._report(outcome)
        self.pulse.step_started = None
        return rows

    def _report(self, outcome: Outcome) -> list[Row]:
        now = self._clock()
        rows = [self._progress(chunk.sequence) for chunk in outcome.prefilled if chunk.sequence.remaining]
        rows += [self._advance(sequence, token, now) for sequence, token in outcome.sampled]
        rows += [self._release(sequence, "", failed=True) for sequence in outcome.lost]
        return rows

    def _progress(self, sequence: Sequence) -> Row:
        generation = self._running[sequence.number]
        return Row(generation.key, sequence.number, "", 0, min(sequence.cells, generation.prompt_tokens))

    def _advance(self, sequence: Sequence, token: int, now: float) -> Row:
        generation = self._running[sequence.number]
        text = generation.take(token, now)
        if generation.finish_reason is not None:
            return self._release(sequence, text, sampled=1, tokens=generation.tokens)
        return Row(generation.key, sequence.number, text, 1, generation.prompt_tokens, generation.tokens)

    def _release(
        self,
        sequence: Sequence,
        text: str,
        *,
        sampled: int = 0,
        tokens: list[int] | None = None,
        failed: bool = False,
    ) -> Row:
        generation = self._running.pop(sequence.number)
        del self._sequences[generation.key]
        end = generation.end(self._clock(), failed=failed)
        done = min(sequence.cells, generation.prompt_tokens)
        self._empty(sequence)
        self._samplers.free(generation.sampler)
        return Row(generation.key, sequence.number, text, sampled, done, tokens, end)

    def _empty(self, sequence: Sequence) -> None:
        self._context.cut(sequence.number, 0)
        sequence.clear()

    def _sampler_of(self, sequence: Sequence) -> object:
        return self._running[sequence.number].sampler
