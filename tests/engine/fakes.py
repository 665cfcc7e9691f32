"""A ledger in place of llama.cpp, and an engine loop built on it."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from car_base.ipc.codec import packed_reading
from car_base.ipc.frames import (
    DecisionForm,
    End,
    FromEngine,
    Halt,
    ImageSlot,
    Park,
    Parked,
    Prepared,
    QuestionForm,
    Reading,
    RequestUpdate,
    Resume,
    Run,
    StepDone,
    Tail,
)
from car_base.ipc.types import NO_ADAPTERS, AdapterSet
from car_engine.batching.costs import StepCosts
from car_engine.batching.planner import StepPlanner
from car_engine.batching.prefix_cache import PrefixCache
from car_engine.batching.reuse.index import Index, Memory
from car_engine.batching.reuse.move_costs import SAVE_BYTE_S, MoveCosts
from car_engine.batching.reuse.stored_cells import CellStore
from car_engine.batching.saved_cells import SavedCells
from car_engine.batching.sequences import Sequence as BatchSequence
from car_engine.batching.sequences import SequenceTable
from car_engine.grammar.constraint import ConstraintError
from car_engine.images.ahead import RowsAhead
from car_engine.images.awaited_images import AwaitedImages
from car_engine.images.encoder import Encode
from car_engine.runner.generation import AnswerTokens
from car_engine.runner.loop import Command, Commands, EngineLoop, ThreadCount
from car_engine.runner.parking import ParkingLot
from car_engine.runner.running import DecodingAbilities, RunningRequests
from car_engine.runner.stepper import SamplingTurns, Stepper
from car_engine.runner.texts import Batches, Texts
from car_protocol.answer import Logprob, TokenChoice
from car_protocol.infer import GenerationOptions, Lora
from tests.pace import SetClock

END_TOKEN = 0
TOKENS = 27
# llama.cpp's codes after which a part of the batch may be in memory.
PARTIAL_CODES = frozenset({2, -2, -3})


class WouldAbort(Exception):
    """The real process would have aborted, or the caller has a defect."""


# One letter a token; token 0 ends.
PIECES: Sequence[bytes] = (b"", *(bytes([97 + letter]) for letter in range(TOKENS - 1)))


LETTERS = AnswerTokens(
    frozenset({END_TOKEN}), lambda _: PIECES, lambda text: [ord(letter) - 96 for letter in text if letter.islower()]
)


class FakeSampler:
    """A sampler that is closed once; `allowed` are the tokens of its grammar, in turn, None where it has none."""

    def __init__(self, logprobs: int | None = None, allowed: list[int] | None = None) -> None:
        self.logprobs = logprobs
        self.unconstrained = False
        self.due: list[int] = []
        self.ahead: int | None = None
        self.closed = False
        self._allowed = allowed

    @property
    def bound(self) -> bool:
        """A grammar binds the next token."""
        return self._allowed is not None

    @property
    def complete(self) -> bool:
        """The grammar is at its end."""
        return self.bound and not self.unconstrained and not self._allowed

    def accept(self, token: int) -> None:
        """Count a token that it did not choose."""

    def choose(self, logits: "Logits") -> int:
        """Return the grammar's next token; it fails at a negative one, and allows any token in reasoning."""
        if self.due:
            return self.due.pop(0)
        if self.unconstrained:
            return next_token(logits.history)
        assert self._allowed
        token = self._allowed.pop(0)
        if token < 0:
            raise ConstraintError
        return token

    def close(self) -> None:
        """Close it."""
        if self.closed:
            raise WouldAbort("a sampler was freed twice")
        self.closed = True


class FakeSamplers:
    """Builds samplers; a constraint has the letters of its grammar, `!` where it fails, `?` if it cannot be built."""

    def __init__(self) -> None:
        self.built: list[FakeSampler] = []

    @property
    def alive(self) -> list[FakeSampler]:
        """Return the samplers that are not closed."""
        return [sampler for sampler in self.built if not sampler.closed]

    def build(self, run: Run, prompt: list[int]) -> FakeSampler:
        """Return a sampler."""
        if run.prepared.constraint == "?":
            raise ConstraintError
        allowed = [-1 if letter == "!" else ord(letter) - 96 for letter in run.prepared.constraint]
        self.built.append(FakeSampler(run.options.logprobs, allowed if run.prepared.constraint else None))
        return self.built[-1]


class Logits:
    """The logits of a row: the tokens up to it, and whether they were copied before the next decode."""

    def __init__(self, history: list[int]) -> None:
        self.history = history
        self.copied = False

    def copy(self) -> "Logits":
        """Return a copy, which the next decode does not overwrite."""
        kept = Logits(self.history)
        kept.copied = True
        return kept


def likelihood(logits: Logits, token: int, count: int) -> Logprob:
    """Return the log probability of a certain token."""
    return Logprob(token, chr(96 + token), 0.0, [TokenChoice(token, chr(96 + token), 0.0)] * count)


def label_figures(logits: Logits, count: int) -> list[float]:
    """Return the figures of so many labels after the tokens of a row, which no other tokens have."""
    return [float(next_token([*logits.history, label])) for label in range(count + 1)]


@dataclass(frozen=True)
class Batch:
    """The columns of one decode."""

    tokens: list[int]
    positions: list[int]
    numbers: list[int]
    outputs: list[bool]


def next_token(history: list[int]) -> int:
    """Return this model's next token; some answers end."""
    mixed = 7
    for token in history:
        mixed = (mixed * 31 + token + 1) % 1_000_003
    return END_TOKEN if mixed % 40 == 0 else 1 + mixed % (TOKENS - 1)


def solo(prompt: list[int], max_tokens: int) -> list[int]:
    """Return the model's answer to a prompt without other requests."""
    sampled: list[int] = []
    while len(sampled) < max_tokens and sampled[-1:] != [END_TOKEN]:
        sampled.append(next_token(prompt + sampled))
    return sampled


class FakeContext:
    """A ledger of every sequence's cells.

    `codes` maps the number of a decode (from 0) to its failure; saved cells can be restored if `restores`; `says`
    returns the next token. With states or windows a cut in the middle raises, unless rows of a window's last decode are
    taken back.
    """

    def __init__(
        self,
        sequences: int = 4,
        context_tokens: int = 64,
        batch_tokens: int = 32,
        *,
        samplers: FakeSamplers | None = None,
        codes: Mapping[int, int] | None = None,
        restores: bool = True,
        memory: Memory = Memory(),  # noqa: B008 - immutable
        says: Callable[[list[int]], int] = next_token,
    ) -> None:
        self.context_tokens = context_tokens
        self.batch_tokens = batch_tokens
        self.samplers = samplers
        self.codes = codes or {}
        self.restores = restores
        self.says = says
        self.cells: list[list[int]] = [[] for _ in range(sequences)]
        self.batches: list[Batch] = []
        self.copies = self.saves = self.restored = 0
        self.copying = False
        self.cell_s = {"save": 1e-6, "restore": 0.3e-6}  # to move one: far less than a step takes to compute it
        self._moved_s = 0.0
        self._outputs: dict[int, tuple[int, int]] = {}
        self.memory = memory
        self.states_saved = 0
        self._before = [0] * sequences  # cells of each sequence before its last decode

    def moves(self) -> float:
        """Return the seconds that saving and restoring took, as a clock."""
        return self._moved_s

    def decode(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> int:
        """Add the rows to the cells, or fail with the code of this decode."""
        batch = Batch(list(tokens), list(positions), list(numbers), list(outputs))
        code = self.codes.get(len(self.batches), 0)
        self.batches.append(batch)
        self.copying = False
        self._outputs = {}
        self._check_shape(batch)
        for number in set(numbers):
            self._before[number] = len(self.cells[number])
        if code in PARTIAL_CODES:
            self._write(batch, (len(tokens) + 1) // 2)
        if code:
            return code
        if any(position >= self.context_tokens for position in positions):
            return 1
        self._write(batch, len(tokens))
        self._outputs = {row: (numbers[row], positions[row]) for row, output in enumerate(outputs) if output}
        return 0

    def sample(self, sampler: object, row: int) -> int:
        """Return the next token after an output row."""
        if row not in self._outputs:
            raise WouldAbort(f"row {row} has no logits")
        if self.samplers is not None and sampler not in self.samplers.alive:
            raise WouldAbort("the sampler was freed, or never built")
        number, position = self._outputs[row]
        return self.says(self.cells[number][: position + 1])

    def likeliest(self, row: int) -> int:
        """Return the most probable token after an output row."""
        return self.sample(None, row)

    def decode_rows(self, rows: list[int], start: int, number: int, *, output: bool) -> int:
        """Decode rows of an image, which are tokens here."""
        count = len(rows)
        outputs = [False] * (count - 1) + [output]
        return self.decode(list(rows), list(range(start, start + count)), [number] * count, outputs)

    def logits(self, row: int) -> Logits:
        """Return the logits of an output row."""
        if row not in self._outputs:
            raise WouldAbort(f"row {row} has no logits")
        number, position = self._outputs[row]
        return Logits(self.cells[number][: position + 1])

    def cut(self, number: int, start: int) -> None:
        """Drop the cells from `start` on."""
        self._check_number(number)
        count, anywhere = len(self.cells[number]), self.memory.cuts_anywhere
        last = start >= self._before[number] + self.memory.states and (
            self.memory.takes_back or count - start <= self.memory.rollback
        )
        if not (anywhere or start == 0 or start >= count or last):
            raise WouldAbort(f"sequence {number} has no state after {start} of {count} cells")
        del self.cells[number][start:]
        if self.memory.states and last:
            # Once until the next decode.
            self._before[number] = len(self.cells[number])

    def last_position(self, number: int) -> int:
        """Return the last position in use."""
        self._check_number(number)
        return len(self.cells[number]) - 1

    def copy(self, source: int, target: int) -> None:
        """Copy a sequence within the context."""
        self._check_number(source)
        self._check_number(target)
        if self.cells[target]:
            raise WouldAbort(f"sequence {target} is not empty")
        self.cells[target] = list(self.cells[source])
        self._before[target] = len(self.cells[target])
        self.copies += 1
        self.copying = True

    def saved_size(self, number: int) -> int:
        """Return the size of one byte a cell."""
        self._check_number(number)
        return len(self.cells[number])

    def save(self, number: int) -> memoryview:
        """Copy a sequence out."""
        self._check_number(number)
        self.saves += 1
        self._moved_s += self.cell_s["save"] * len(self.cells[number])
        return memoryview(bytes(self.cells[number]))

    def restore(self, number: int, saved: memoryview) -> bool:
        """Copy a sequence in, unless `restores` is False."""
        self._check_number(number)
        if self.cells[number]:
            raise WouldAbort(f"sequence {number} is not empty")
        if self.restores:
            self.cells[number] = list(saved)
            self.restored += 1
            self._moved_s += self.cell_s["restore"] * len(saved)
            self._before[number] = len(saved)
        return self.restores

    def state_size(self, number: int) -> int:
        """Return the size of a state: one byte a token that it has seen, so that a wrong one shows."""
        return self.saved_size(number)

    def save_state(self, number: int) -> memoryview:
        """Copy the state of a sequence out."""
        assert not self.memory.cuts_anywhere
        self._check_number(number)
        self.states_saved += 1
        return memoryview(bytes(self.cells[number]))

    def restore_state(self, number: int, state: memoryview, tokens: int) -> bool:
        """Put a state over the cells of the same tokens, and drop the others."""
        assert not self.memory.cuts_anywhere
        self._check_number(number)
        if list(state) != self.cells[number][:tokens] or len(state) != tokens:
            raise WouldAbort(f"the state is not that after {tokens} cells of sequence {number}")
        if self.restores:
            self.cells[number] = list(state)
            self._before[number] = tokens
        return self.restores

    def _check_shape(self, batch: Batch) -> None:
        if not 1 <= len(batch.tokens) <= self.batch_tokens:
            raise WouldAbort(f"{len(batch.tokens)} rows in a batch of {self.batch_tokens}")
        if batch.numbers != sorted(batch.numbers):
            raise WouldAbort("sequences out of order are split")
        for number in batch.numbers:
            self._check_number(number)
        if not len(batch.tokens) == len(batch.positions) == len(batch.numbers) == len(batch.outputs):
            raise WouldAbort("columns of unequal length")

    def _check_number(self, number: int) -> None:
        if not 0 <= number < len(self.cells):
            raise WouldAbort(f"there is no sequence {number}")

    def _write(self, batch: Batch, rows: int) -> None:
        for token, position, number in list(zip(batch.tokens, batch.positions, batch.numbers, strict=True))[:rows]:
            if position != len(self.cells[number]):
                raise WouldAbort(f"sequence {number} has a gap at {position}")
            self.cells[number].append(token)


def begin(table: SequenceTable, prompt: list[int]) -> BatchSequence:
    """Start a prompt in the first idle sequence."""
    sequence = table.idle[0]
    sequence.start(prompt, table.next_order())
    return sequence


def run_command(
    key: int,
    prompt: list[int],
    max_tokens: int = 8,
    *,
    stop: list[str] | None = None,
    return_tokens: bool = True,
    logprobs: int | None = None,
    constraint: str = "",
    reading: Reading | None = None,
    namespace: str | None = None,
    adapters: AdapterSet = NO_ADAPTERS,
    images: list[ImageSlot] | None = None,
    reproducible: bool = False,
    own: tuple[int, ...] = (1,),
    reasoning_tokens: int | None = None,
) -> Run:
    """Return the frame that starts a request."""
    options = GenerationOptions(
        temperature=0.0,
        seed=1,
        stop=stop or [],
        return_tokens=return_tokens,
        logprobs=logprobs,
        lora=[Lora(name, scale) for name, scale in adapters],
        reproducible=reproducible,
        reasoning_tokens=reasoning_tokens,
    )
    tokens = array("i", prompt).tobytes()
    packed = packed_reading(reading or Reading())
    prepared = Prepared(key, tokens, max_tokens, constraint, packed, images=images or [], own=own)
    return Run(prepared, options, namespace)


def decide_command(
    key: int,
    prefix: list[int],
    tails: list[list[int]],
    *,
    namespace: str | None = "1000:",
    reproducible: bool = False,
    images: list[ImageSlot] | None = None,
) -> Run:
    """Return the frame that starts a decision with two labels after each tail."""
    tokens = array("i", prefix + [token for tail in tails for token in tail]).tobytes()
    form = DecisionForm(len(prefix), [Tail(len(tail), 2) for tail in tails], [QuestionForm(1, 1.0)] * len(tails))
    prepared = Prepared(key, tokens, 1, images=images or [], decision=form)
    return Run(prepared, GenerationOptions(reproducible=reproducible), namespace)


class FakeEmbedder:
    """Returns the length and the first token of every text as its vector, two texts a batch; fails at token 13."""

    def batches(self, inputs: list[list[int]]) -> list[list[int]]:
        """Return pairs of texts."""
        indices = list(range(len(inputs)))
        return [indices[start : start + 2] for start in range(0, len(indices), 2)]

    def in_batches(self, inputs: list[list[int]], _: bool) -> Batches:
        """Compute batches as they are taken."""
        return ((batch, self._embed([inputs[index] for index in batch])) for batch in self.batches(inputs))

    def _embed(self, inputs: list[list[int]]) -> list[list[float]]:
        if any(13 in text for text in inputs):
            raise RuntimeError
        return [[float(len(text)), float(text[0])] for text in inputs]


class FakeEngine:
    """An engine loop over the ledger, and its updates by request key."""

    def __init__(
        self,
        context: FakeContext,
        *,
        tick: float = 0.001,
        saved_bytes: int = 1000,
        speculates: bool = False,
        repeats: bool = True,
        commands: Commands | None = None,
        costs: StepCosts | None = None,
        store: CellStore | None = None,
    ) -> None:
        self.context = context
        self.samplers = FakeSamplers()
        context.samplers = self.samplers
        self.table = SequenceTable(len(context.cells), context.context_tokens)
        self.costs = costs or StepCosts()
        self.threads = ThreadCount(self.costs)
        self.updates: dict[int, list[RequestUpdate]] = {}
        self.adapted: list[AdapterSet] = []
        self.encodes: list[Encode] = []
        self.prepared: list[int] = []
        self.resident: list[list[int]] = []  # waiting requests that would go on in idle sequences, by ends
        self.ahead = RowsAhead(self.encodes.append, self._receive, row_bytes=1, limit=50)
        self.parked: list[int] = []
        index = Index(context.memory)
        self.saved = SavedCells(saved_bytes, index)
        self.commands = commands or Commands(timeout=0.0)
        cell_bytes = context.cell_s["save"] / SAVE_BYTE_S
        self.moves = moves = MoveCosts(self.costs, context.context_tokens, cell_bytes, context.moves)
        self.cache = PrefixCache(context, self.table, self.saved, index, moves, self.commands.expected, store)
        self.clock = clock = SetClock(tick=tick)
        sampling = SamplingTurns(context, likelihood, clock)
        self.running = RunningRequests(
            build_sampler=self.samplers.build,
            tokens=LETTERS,
            cache=self.cache,
            sampling=sampling,
            images=AwaitedImages(self.encodes.append, self.ahead),
            parking=ParkingLot(context, self.saved, moves),
            abilities=DecodingAbilities(speculates and context.memory.guesses > 0, repeats),
            clock=clock,
        )
        self.loop = EngineLoop(
            commands=self.commands,
            running=self.running,
            texts=Texts(lambda: FakeEmbedder().in_batches, clock),
            table=self.table,
            planner=StepPlanner(
                self.costs, context.batch_tokens, step_target=0.05, idle_target=0.2, memory=context.memory
            ),
            stepper=Stepper(context, self.costs, sampling, label_figures, self.adapted.append, clock),
            threads=self.threads,
            send=self._receive,
        )

    def turn(self, *commands: Command) -> None:
        """Let the loop do one turn."""
        self.loop.turn(list(commands))

    def finish(self, turns: int = 1000) -> None:
        """Let the loop turn until all work is done."""
        while self.table.busy and turns:
            self.turn()
            turns -= 1
        assert not self.table.busy

    def halt(self, key: int, *, deadline: bool = False) -> None:
        """Let the loop do one turn that halts a request."""
        self.turn(Halt(key, deadline))

    def park(self, key: int) -> None:
        """Let the loop do one turn that parks a request."""
        self.turn(Park(key))

    def resume(self, key: int) -> None:
        """Let the loop do one turn that resumes a request."""
        self.turn(Resume(key))

    def number_of(self, key: int) -> int | None:
        """Return the number of a request's sequence; None if it is parked or done."""
        sequence = self.running.seats.sequences.get(key)
        return None if sequence is None else sequence.number

    def ends(self, key: int) -> list[End]:
        """Return the ends of a request: at most one."""
        return [update.end for update in self.updates.get(key, []) if update.end is not None]

    def text(self, key: int) -> str:
        """Return a request's text so far."""
        return "".join(update.text for update in self.updates.get(key, []))

    def tokens(self, key: int) -> list[int]:
        """Return a request's tokens so far."""
        return [
            token for update in self.updates.get(key, []) if update.extra is not None for token in update.extra.tokens
        ]

    def _receive(self, message: FromEngine) -> None:
        match message:
            case StepDone():
                self._add(message.updates)
                if message.resident:
                    self.resident.append(message.resident)
            case Parked():
                assert not self.ends(message.key)
                self.parked.append(message.key)
            case Prepared():
                self.prepared.append(message.key)
            case _:
                raise AssertionError(message)

    def _add(self, updates: Iterable[RequestUpdate]) -> None:
        for update in updates:
            assert not self.ends(update.key), f"request {update.key} had ended"
            self.updates.setdefault(update.key, []).append(update)
