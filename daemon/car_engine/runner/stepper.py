"""One planned step: rows are filled, decoded, sampled and committed; nothing changes before decode returned 0."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct

from car_base.ipc.types import NO_ADAPTERS, PHASES, AdapterSet, Phase
from car_engine.batching.context import Context
from car_engine.batching.costs import StepCosts
from car_engine.batching.decode import DecodeBatch
from car_engine.batching.planner import Step
from car_engine.batching.prefill import PromptChunk
from car_engine.batching.sequences import Sequence, mean_cells
from car_engine.grammar.constraint import ConstraintError
from car_protocol.answer import Logprob

# Grammars may take this long in a step before other streams would notice; one token is sampled in any case.
_BUDGET_S = 0.005


class TokenSampler(Protocol):
    """The sampler of one request: llama.cpp's in production, a script in tests."""

    logprobs: int | None
    unconstrained: bool
    due: list[int]  # tokens that come next, whatever the logits say
    ahead: int | None  # the most tokens of a step; None without a bound

    def accept(self, token: int) -> None:
        """Count a token that it did not choose."""
        ...

    @property
    def bound(self) -> bool:
        """Whether the next token has to fit a grammar."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the grammar allows no further token."""
        ...

    def choose(self, logits: Any) -> int:
        """Return and accept the next token that the grammar allows. Raises ConstraintError."""
        ...

    def close(self) -> None:
        """Free it; called once."""
        ...


class SampledToken(Struct, frozen=True, gc=False):
    """The next token of a sequence, with its log probability if the request has that option."""

    sequence: Sequence
    token: int
    logprob: Logprob | None


class SamplingTurns:
    """Sample rows; a grammar-bound row whose turn does not come in this step keeps its logits for the next."""

    def __init__(
        self, rows: Context, logprob_of: Callable[[Any, int, int], Logprob], clock: Callable[[], float]
    ) -> None:
        self._rows = rows
        self._logprob_of = logprob_of
        self._clock = clock
        self._samplers: dict[int, TokenSampler] = {}  # By sequence number.
        self.waiting: dict[int, tuple[Sequence, Any]] = {}  # Logits by sequence number, longest waiting first.

    def join(self, sequence: Sequence, sampler: TokenSampler) -> None:
        """Sample a sequence with this sampler from now on."""
        self._samplers[sequence.number] = sampler

    def leave(self, sequence: Sequence) -> None:
        """Drop the sampler and the waiting logits of a sequence whose request ended or was parked."""
        self._samplers.pop(sequence.number, None)
        self.waiting.pop(sequence.number, None)

    def sample(self, sequence: Sequence, row: int) -> SampledToken | None:
        """Return the token of an output row; None if it has to wait for its turn."""
        sampler = self._samplers[sequence.number]
        if sampler.bound:
            sequence.await_turn()
            self.waiting[sequence.number] = sequence, self._rows.logits(row).copy()
            return None
        if sampler.due:
            sampler.accept(token := sampler.due.pop(0))
        else:
            token = self._rows.sample(sampler, row)
        if sampler.logprobs is not None:
            return self._sampled(sequence, token, self._rows.logits(row))
        sequence.accept(token)
        return SampledToken(sequence, token, None)

    def ahead(self, sequence: Sequence, count: int) -> int:
        """Return how many of so many guessed tokens may be sampled in one step, after the token before them."""
        most = self._samplers[sequence.number].ahead
        return count if most is None else min(count, most - 1)

    def sample_waiting(self) -> tuple[list[SampledToken], list[Sequence]]:
        """Sample waiting rows while the budget lasts; return tokens, and sequences whose grammar failed."""
        tokens: list[SampledToken] = []
        failed: list[Sequence] = []
        started = self._clock() if self.waiting else 0.0
        while self.waiting:
            sequence, logits = self.waiting.pop(next(iter(self.waiting)))
            try:
                token = self._samplers[sequence.number].choose(logits)
            except ConstraintError:
                failed.append(sequence)
            else:
                tokens.append(self._sampled(sequence, token, logits))
            if self._clock() - started > _BUDGET_S:
                break
        return tokens, failed

    def _sampled(self, sequence: Sequence, token: int, logits: Any) -> SampledToken:
        sequence.accept(token)
        count = self._samplers[sequence.number].logprobs
        return SampledToken(sequence, token, None if count is None else self._logprob_of(logits, token, count))


class PhaseTimer:
    """Count the time between two calls for a phase; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)  # Since the start.
        self.now = clock()  # Time of the last call.

    def begin(self) -> None:
        """Skip the time since the last call."""
        self.now = self._clock()

    def end(self, phase: Phase) -> float:
        """Count the time since the last call for a phase; return the current time."""
        now = self._clock()
        self.seconds[phase] += now - self.now
        self.now = now
        return now


# The content of a padding row does not matter: it has no logits, and its cell is removed after the step.
_PADDING_TOKEN = 0


class DecodeFailed(Exception):
    """A decode failed and no sequence explains it: the state of the context is unknown."""


class _Rows:
    """The rows of one decode as parallel columns."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.numbers: list[int] = []
        self.outputs: list[bool] = []

    def add(self, tokens: list[int], start: int, number: int, *, output: bool) -> None:
        """Append consecutive tokens of one sequence; with `output` the last row has logits."""
        count = len(tokens)
        self.tokens += tokens
        self.positions += range(start, start + count)
        self.numbers += [number] * count
        self.outputs += [False] * (count - 1)
        self.outputs.append(output)


@dataclass(slots=True)
class Outcome:
    """Results of a step: sampled tokens, committed chunks, and sequences that failed.

    `read` are the labels of the prompts that were read to their end in place of a sample. The cells of `lost` sequences
    are unknown; the grammar of `refused` sequences failed.
    """

    sampled: list[SampledToken] = field(default_factory=list)
    read: list[tuple[Sequence, list[float]]] = field(default_factory=list)
    prefilled: list[PromptChunk] = field(default_factory=list)
    lost: list[Sequence] = field(default_factory=list)
    refused: list[Sequence] = field(default_factory=list)


class Stepper:
    """Execute steps on a context, and learn their costs."""

    def __init__(
        self,
        context: Context,
        costs: StepCosts,
        sampling: SamplingTurns,
        read: Callable[[Any, int], list[float]],
        adapt: Callable[[AdapterSet], None],
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._costs = costs
        self._sampling = sampling
        self._read = read
        self._adapt = adapt
        self._adapters = NO_ADAPTERS  # Of the context now.
        self.phases = PhaseTimer(clock)
        self.counters = {
            "decode_steps": 0.0,
            "decode_tokens": 0.0,
            "prefill_tokens": 0.0,
            "lookup_tried": 0.0,
            "lookup_right": 0.0,
        }  # Since the start.

    def execute(self, step: Step) -> Outcome:
        """Execute the decodes, then the prefill batch: fused they would be split into slower pieces."""
        if step.adapters != self._adapters:
            self._adapt(step.adapters)
            self._adapters = step.adapters
            self.phases.end("plan")
        outcome = Outcome()
        self.counters["decode_steps"] += bool(step.decode)
        for batch in step.decode:
            self._decode(batch, outcome)
        if step.prefill:
            self._prefill(step.prefill, outcome)
        if self._sampling.waiting:
            sampled, outcome.refused = self._sampling.sample_waiting()
            outcome.sampled += sampled
            self.phases.end("sample")
        return outcome

    def _decode(self, batch: DecodeBatch, outcome: Outcome) -> None:
        started, sampled = self.phases.now, len(outcome.sampled)
        rows, padding = self._fill(batch)
        self.phases.end("fill")
        copying = self._context.copying
        code = self._context.decode(rows.tokens, rows.positions, rows.numbers, rows.outputs)
        self.phases.end("decode")
        for number, cells in padding:
            # Also after a failed decode, which may have done a part of its rows.
            self._context.cut(number, cells)
        if code:
            for member in batch.sequences:
                member.guess = []
            outcome.lost += self._lost(code, [(sequence, 1) for sequence in batch.sequences])
            return
        for place, (_, sequence) in enumerate(batch.members):
            if sequence is not None:
                sequence.commit(1)
                self._sample(sequence, place * (1 + batch.guessed), outcome)
                if batch.guessed:
                    self._try(sequence, place * (1 + batch.guessed), outcome)
        seconds = self.phases.end("sample") - started
        # llama.cpp splits a decode with holes, so its time says nothing about one batch.
        dense = rows.numbers[-1] - rows.numbers[0] == len(batch.members) - 1
        if dense and not copying:
            self._costs.decoded(len(rows.numbers), seconds, mean_cells(batch.sequences))
        self.counters["decode_tokens"] += max(len(batch.sequences), len(outcome.sampled) - sampled)

    def _fill(self, batch: DecodeBatch) -> tuple[_Rows, list[tuple[int, int]]]:
        """Return the rows of a batch, and the numbers of padded sequences with the cells to keep."""
        rows, padding = _Rows(), []
        for number, sequence in batch.members:
            if sequence is None:
                cells = self._context.last_position(number) + 1
                rows.add([_PADDING_TOKEN], cells, number, output=False)
                padding.append((number, cells))
                continue
            assert sequence.next_token is not None
            # Without a call, because this runs for every token.
            rows.tokens.append(sequence.next_token)
            rows.positions.append(sequence.cells)
            rows.numbers.append(number)
            rows.outputs.append(True)
            if batch.guessed:
                useless = [_PADDING_TOKEN] * (batch.guessed - len(sequence.guess))
                for place, token in enumerate(sequence.guess + useless, 1):
                    rows.add([token], sequence.cells + place, number, output=True)
        return rows, padding

    def _try(self, sequence: Sequence, row: int, outcome: Outcome) -> None:
        """Commit and sample the rows of a guess after a decoded row while it is right; the other cells are removed."""
        guess, sequence.guess, right = sequence.guess, [], 0
        most = self._sampling.ahead(sequence, len(guess))
        while right < most and sequence.next_token == guess[right]:
            right += 1
            sequence.commit(1)
            self._sample(sequence, row + right, outcome)
        self._context.cut(sequence.number, sequence.cells)
        if not guess:
            return
        self.counters["lookup_tried"] += right + (right < most)
        self.counters["lookup_right"] += right

    def _prefill(self, chunks: list[PromptChunk], outcome: Outcome) -> None:
        started = self.phases.now
        depth = mean_cells([chunk.sequence for chunk in chunks])
        copying = self._context.copying
        code = self._decode_chunks(chunks)
        self.phases.end("prefill")
        if code:
            outcome.lost += self._lost(code, [(chunk.sequence, chunk.length) for chunk in chunks])
            return
        row = -1
        for chunk in chunks:
            row += chunk.length
            completes = chunk.completes
            chunk.sequence.commit(chunk.length)
            if completes and chunk.sequence.known_token is not None:
                chunk.sequence.accept(chunk.sequence.known_token)
            elif completes and chunk.sequence.labels:
                figures = self._read(self._context.logits(row), chunk.sequence.labels)
                outcome.read.append((chunk.sequence, figures))
            elif completes:
                self._sample(chunk.sequence, row, outcome)
        seconds = self.phases.end("sample") - started
        if not copying:
            self._costs.prefilled(chunks[0].length, seconds, depth, len(chunks))
        self.counters["prefill_tokens"] += sum(chunk.length for chunk in chunks)
        outcome.prefilled += chunks

    def _decode_chunks(self, chunks: list[PromptChunk]) -> int:
        first = chunks[0].sequence
        if (image := first.images.at(first.cells)) is not None:
            start = first.cells - image.start
            return self._context.decode_rows(
                image.rows[start : start + chunks[0].length], first.cells, first.number, output=chunks[0].completes
            )
        rows = _Rows()
        for chunk in chunks:
            sequence = chunk.sequence
            tokens = list(sequence.prompt[sequence.cells : sequence.cells + chunk.length])
            rows.add(tokens, sequence.cells, sequence.number, output=chunk.completes)
        self.phases.end("fill")
        return self._context.decode(rows.tokens, rows.positions, rows.numbers, rows.outputs)

    def _lost(self, code: int, rows: list[tuple[Sequence, int]]) -> list[Sequence]:
        """Return the sequences that explain a failed decode: full sequences, and sequences whose cells disagree with
        ours.
        """
        lost = [
            sequence
            for sequence, count in rows
            if sequence.cells + count > self._context.context_tokens
            or self._context.last_position(sequence.number) != sequence.cells - 1
        ]
        if not lost:
            raise DecodeFailed(f"llama_decode returned {code} for {len(rows)} sequences")
        return lost

    def _sample(self, sequence: Sequence, row: int, outcome: Outcome) -> None:
        sampled = self._sampling.sample(sequence, row)
        if sampled is not None:
            outcome.sampled.append(sampled)
            if sequence.lookup is not None:
                sequence.lookup.add(sampled.token)
