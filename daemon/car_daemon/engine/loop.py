"""The loop thread: commands in, plan → decode → sample, one frame out a step."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from car_daemon.engine.awaited_images import AwaitedImages
from car_daemon.engine.batching.adapter_turns import AdapterSet, AdapterTurns
from car_daemon.engine.batching.lookup import Lookup
from car_daemon.engine.batching.planner import StepPlanner
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.batching.table import SequenceTable
from car_daemon.engine.commands import Command, Commands
from car_daemon.engine.draws import Draw
from car_daemon.engine.encoding import Encode, Encoded
from car_daemon.engine.frames import (
    End,
    Fault,
    FromEngine,
    Halt,
    Park,
    Parked,
    Resume,
    Row,
    Run,
    RunTexts,
    Share,
    StepDone,
)
from car_daemon.engine.generation import NOTHING, BoundSampler, Generation, Vocabulary
from car_daemon.engine.grammar.constraint import ConstraintError
from car_daemon.engine.output.reader import Output
from car_daemon.engine.parking import ParkingLot
from car_daemon.engine.prefix_cache import PrefixCache
from car_daemon.engine.stepper import Outcome, Stepper
from car_daemon.engine.texts import NO_SEQUENCE, Texts
from car_protocol.answer import Usage


class Samplers(Protocol):
    """Builds the sampler of one request."""

    def build(self, run: Run, prompt: list[int]) -> BoundSampler:
        """Return a sampler, which is closed once. Raises ConstraintError."""
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
        samplers: Samplers,
        vocabulary: Vocabulary,
        table: SequenceTable,
        adapt: Callable[[AdapterSet], None],
        cache: PrefixCache,
        planner: StepPlanner,
        lot: ParkingLot,
        texts: Texts,
        encode: Callable[[Encode], None],
        speculates: bool,
        share: Callable[[int], None],
        make_stepper: Callable[[Callable[[Sequence], BoundSampler]], Stepper],
        commands: Commands,
        send: Callable[[FromEngine], None],
        clock: Callable[[], float],
    ) -> None:
        self._samplers = samplers
        self._vocabulary = vocabulary
        self._table = table
        self._cache = cache
        self._adapt = adapt
        self._turns = AdapterTurns()
        self._planner = planner
        self._lot = lot
        self._texts = texts
        self._images = AwaitedImages(encode)
        self._speculates = speculates
        self._share_threads = share
        self._stepper = make_stepper(self._sampler_of)
        self._laps = self._stepper.laps
        self._commands = commands
        self._send = send
        self._clock = clock
        self.pulse = Pulse()
        self._doers: dict[type[Command], Callable[[Any], list[Row]]] = {
            Run: self._start,
            RunTexts: texts.start,
            Park: self._park,
            Resume: self._resume,
            Halt: self._halt,
            Encoded: self._see,
            Share: self._share,
        }
        # Mutable state: the request of every busy sequence, by sequence number and by request key.
        self._running: dict[int, Generation] = {}
        self._sequences: dict[int, Sequence] = {}

    @property
    def counters(self) -> dict[str, float]:
        """Totals of the steps and of the prefix cache so far, and the seconds of each phase."""
        seconds = {f"{phase}_s": passed for phase, passed in self._laps.seconds.items()}
        return {**self._stepper.counters, **self._cache.counters, **seconds}

    def run(self) -> NoReturn:
        """Work as long as the process lives."""
        while True:
            self.turn(self._next_commands())

    def _next_commands(self) -> list[Command]:
        if self._table.busy or self._texts.busy:
            return self._commands.take(wait=False)
        return self._commands.gather(len(self._table.sequences))

    def turn(self, commands: list[Command]) -> None:
        """Apply commands, run one step and report it."""
        self._laps.begin()
        rows: list[Row] = []
        for command in commands:
            rows += self._doers[type(command)](command)
        self._cache.settle()
        self._laps.end("intake")
        if self._table.busy:
            rows += self._step()
        if self._texts.busy and (self._texts.due or not self._table.busy):
            rows += self._texts.step()
            self._laps.end("embed")
        if rows:
            self._send(StepDone(self.pulse.step, rows))
            self._laps.end("send")

    def _start(self, run: Run) -> list[Row]:
        prompt = memoryview(run.tokens).cast("i").tolist()
        try:
            sampler = self._samplers.build(run, prompt)
        except ConstraintError:
            # It compiled when it was prepared; by now it has become too complex for the library.
            end = End(None, None, Usage(len(prompt), 0, 0), 0.0, 0.0, "constraint")
            return [Row(run.key, NO_SEQUENCE, "", 0, 0, end=end)]
        generation = Generation(run, sampler, self._vocabulary, len(prompt), self._clock())
        sequence = self._cache.start(prompt, run.namespace, run.adapters)
        if sequence is None:
            return [self._unseated(generation)]
        self._running[sequence.number] = generation
        self._sequences[run.key] = sequence
        if self._speculates and not sampler.bound:
            sequence.lookup = Lookup(prompt)
        self._images.ask(run.key, generation.images, sequence)
        return []

    def _unseated(self, generation: Generation) -> Row:
        """End a request that has no sequence: the gate leased more than this engine declared."""
        generation.sampler.close()
        return Row(generation.key, NO_SEQUENCE, "", 0, 0, end=generation.end(self._clock(), fault="lease"))

    def _see(self, encoded: Encoded) -> list[Row]:
        sequence = self._sequences.get(encoded.key)
        if sequence is None or not sequence.blind:
            return []
        if encoded.fault is not None:
            return [self._release(sequence, NOTHING, fault=encoded.fault)]
        self._images.give(encoded, sequence)
        return []

    def _share(self, share: Share) -> list[Row]:
        self._share_threads(share.threads)
        return []

    def _park(self, park: Park) -> list[Row]:
        if self._texts.park(park.key) or self._set_aside(park.key):
            self._send(Parked(park.key))
        return []

    def _set_aside(self, key: int) -> bool:
        sequence = self._sequences.pop(key, None)
        if sequence is None:
            return False
        self._images.drop(key)
        generation = self._running.pop(sequence.number)
        self._cached(sequence, generation)
        self._lot.park(sequence, generation)
        self._stepper.forget(sequence)
        self._cache.leave(sequence)
        return True

    def _resume(self, resume: Resume) -> list[Row]:
        parked = None if self._texts.resume(resume.key) else self._lot.take(resume.key)
        if parked is None:
            return []
        sequence = self._cache.start(list(parked.prompt), None, parked.adapters)
        if sequence is None:
            return [self._unseated(parked.generation)]
        self._running[sequence.number] = parked.generation
        self._sequences[resume.key] = sequence
        self._lot.restore(parked, sequence)
        self._images.ask(resume.key, parked.generation.images, sequence)
        return []

    def _halt(self, halt: Halt) -> list[Row]:
        if rows := self._texts.halt(halt.key):
            return rows
        sequence = self._sequences.get(halt.key)
        if sequence is not None:
            generation = self._running[sequence.number]
            return [self._release(sequence, generation.finish("deadline") if halt.deadline else NOTHING)]
        parked = self._lot.take(halt.key)
        if parked is None:
            return []
        generation = parked.generation
        output = generation.finish("deadline") if halt.deadline else NOTHING
        generation.sampler.close()
        end = generation.end(self._clock())
        return [Row(halt.key, NO_SEQUENCE, output.text, 0, parked.cells, generation.beside(output), end)]

    def _step(self) -> list[Row]:
        self.pulse.step += 1
        self.pulse.step_started = self._laps.now
        self._take_turn()
        step = self._planner.plan(self._table)
        self._laps.end("plan")
        outcome = self._stepper.run(step)
        rows = self._report(outcome)
        self._cache.settle()
        self._texts.yield_to(self._laps.end("text") - self.pulse.step_started)
        self.pulse.step_started = None
        return rows

    def _take_turn(self) -> None:
        """Give the context the adapters whose turn it is."""
        working = self._table.working
        if not working:
            return
        chosen = self._turns.choose(working, self._clock())
        if chosen != self._table.turn:
            self._adapt(chosen)
            self._table.turn = chosen

    def _report(self, outcome: Outcome) -> list[Row]:
        now = self._clock()
        rows = [self._progress(chunk.sequence) for chunk in outcome.prefilled if chunk.sequence.remaining]
        # A guess that came true brings several tokens, of which one may end the request.
        running = (draw for draw in outcome.sampled if draw.sequence.number in self._running)
        rows += [self._advance(draw, now) for draw in running]
        rows += [self._release(sequence, NOTHING, fault="decode") for sequence in outcome.lost]
        rows += [self._release(sequence, NOTHING, fault="constraint") for sequence in outcome.refused]
        return rows

    def _progress(self, sequence: Sequence) -> Row:
        generation = self._running[sequence.number]
        done = min(sequence.cells, generation.prompt_tokens)
        return Row(generation.key, sequence.number, "", 0, done, cached=self._cached(sequence, generation))

    def _advance(self, draw: Draw, now: float) -> Row:
        generation = self._running[draw.sequence.number]
        cached = self._cached(draw.sequence, generation)
        output = generation.take(draw.token, now)
        if generation.finish_reason is not None:
            return self._release(draw.sequence, output, draw)
        extra = generation.beside(output, draw.token, draw.logprob)
        number, prompt_tokens = draw.sequence.number, generation.prompt_tokens
        return Row(generation.key, number, output.text, 1, prompt_tokens, extra, cached=cached)

    def _release(
        self, sequence: Sequence, output: Output, draw: Draw | None = None, *, fault: Fault | None = None
    ) -> Row:
        generation = self._running.pop(sequence.number)
        del self._sequences[generation.key]
        self._images.drop(generation.key)
        cached = self._cached(sequence, generation)
        end = generation.end(self._clock(), fault=fault)
        done = min(sequence.cells, generation.prompt_tokens)
        self._stepper.forget(sequence)
        if fault == "decode":
            self._cache.leave(sequence)
        else:
            self._cache.retire(sequence, generation.history)
        generation.sampler.close()
        sampled, token, logprob = (1, draw.token, draw.logprob) if draw is not None else (0, None, None)
        extra = generation.beside(output, token, logprob)
        return Row(generation.key, sequence.number, output.text, sampled, done, extra, end, cached)

    def _cached(self, sequence: Sequence, generation: Generation) -> int:
        """Return how many cells the request was spared since it was last asked."""
        cached, sequence.cached = sequence.cached, 0
        generation.cached_tokens += cached
        return cached

    def _sampler_of(self, sequence: Sequence) -> BoundSampler:
        return self._running[sequence.number].sampler
