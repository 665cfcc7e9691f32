"""Do one planned step: contribute rows, decode, sample, commit; before decode returned 0 nothing changes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.planner import Chunk, Run, Step
from car_daemon.engine.batching.sequence import Sequence, mean_cells
from car_daemon.engine.draws import Draw, Draws
from car_daemon.engine.laps import Laps

# The content of a padding row never matters: it asks for no logits and is removed after the step.
_PADDING_TOKEN = 0


class Context(Protocol):
    """The model context as a step sees it; llama.cpp in production, a ledger in tests."""

    @property
    def copying(self) -> bool:
        """Whether the next decode copies cells besides, which says nothing of what its rows cost."""
        ...

    def decode(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> int:
        """Decode one batch of rows; 0 where it is done, llama.cpp's code where it is not."""
        ...

    def decode_rows(self, rows: Any, start: int, number: int, *, output: bool) -> int:
        """Decode rows of an image for one sequence from position `start` on."""
        ...

    def cut(self, number: int, start: int) -> None:
        """Remove a sequence's cells from position `start` on."""
        ...

    def last_position(self, number: int) -> int:
        """Return the last position that a sequence holds, -1 where it is empty."""
        ...


class DecodeFailed(Exception):
    """A decode failed and no sequence explains it: the context cannot be trusted any more."""


class _Batch:
    """The rows of one decode as parallel columns."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.numbers: list[int] = []
        self.outputs: list[bool] = []

    def add(self, tokens: list[int], start: int, number: int, *, output: bool) -> None:
        """Append consecutive tokens of one sequence; with `output` the last row asks for logits."""
        count = len(tokens)
        self.tokens += tokens
        self.positions += range(start, start + count)
        self.numbers += [number] * count
        self.outputs += [False] * (count - 1)
        self.outputs.append(output)


@dataclass(slots=True)
class Outcome:
    """What a step brought: a token a sequence, chunks that were committed, sequences that cannot go on."""

    sampled: list[Draw] = field(default_factory=list)
    prefilled: list[Chunk] = field(default_factory=list)
    lost: list[Sequence] = field(default_factory=list)
    refused: list[Sequence] = field(default_factory=list)


class Stepper:
    """Run steps on a context and keep their costs and counters."""

    def __init__(
        self,
        context: Context,
        costs: StepCosts,
        draws: Draws,
        context_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._costs = costs
        self._draws = draws
        self._context_tokens = context_tokens
        # Mutable state: where time went, and totals since the start.
        self.laps = Laps(clock)
        self.counters = {"decode_steps": 0.0, "decode_tokens": 0.0, "prefill_tokens": 0.0}

    def run(self, step: Step) -> Outcome:
        """Run the decodes, then the prefill batch: fused they would be split into slower pieces."""
        outcome = Outcome()
        self.counters["decode_steps"] += bool(step.decode)
        for run in step.decode:
            self._decode(run, outcome)
        if step.prefill:
            self._prefill(step.prefill, outcome)
        draws, outcome.refused = self._draws.settle()
        outcome.sampled += draws
        self.laps.end("sample")
        return outcome

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept for a sequence that ended or was parked."""
        self._draws.forget(sequence)

    def _decode(self, run: Run, outcome: Outcome) -> None:
        started = self.laps.now
        drawn = len(outcome.sampled)
        batch, rows = self._decode_rows(run)
        self.laps.end("fill")
        copying = self._context.copying
        code = self._context.decode(batch.tokens, batch.positions, batch.numbers, batch.outputs)
        self.laps.end("decode")
        decoded = self._checked(code, [(sequence, 1) for sequence in run.sequences], outcome)
        for number, cells in rows.padding:
            # A decode that failed may have done a part of its rows.
            self._context.cut(number, cells)
        if not decoded:
            return
        for sequence, row in rows.decode:
            sequence.commit(1)
            self._sample(sequence, row, outcome)
            self._follow_guess(sequence, row, outcome)
        seconds = self.laps.end("sample") - started
        dense = batch.numbers[-1] - batch.numbers[0] == len(batch.numbers) - 1
        if (dense or len(run.sequences) == 1) and not copying:
            self._costs.decode.observe(len(batch.numbers), seconds)
        self.counters["decode_tokens"] += max(len(run.sequences), len(outcome.sampled) - drawn)

    def _decode_rows(self, run: Run) -> tuple[_Batch, "_Rows"]:
        batch, rows = _Batch(), _Rows()
        order: list[tuple[int, Sequence | None]] = [(sequence.number, sequence) for sequence in run.sequences]
        order += [(number, None) for number in run.padding]
        for row, (number, sequence) in enumerate(sorted(order, key=lambda entry: entry[0])):
            if sequence is None:
                cells = self._context.last_position(number) + 1
                batch.add([_PADDING_TOKEN], cells, number, output=False)
                rows.padding.append((number, cells))
            else:
                assert sequence.next_token is not None
                batch.add([sequence.next_token], sequence.cells, number, output=True)
                for place, token in enumerate(sequence.guess, 1):
                    batch.add([token], sequence.cells + place, number, output=True)
                rows.decode.append((sequence, row))
        return batch, rows

    def _follow_guess(self, sequence: Sequence, row: int, outcome: Outcome) -> None:
        """Sample on as long as what was guessed comes true; the cells of wrong guesses are removed."""
        guess, sequence.guess = sequence.guess, []
        right = 0
        while right < len(guess) and sequence.next_token == guess[right]:
            right += 1
            sequence.commit(1)
            self._sample(sequence, row + right, outcome)
        if guess:
            assert sequence.lookup is not None
            sequence.lookup.judge(len(guess), right)
            self._context.cut(sequence.number, sequence.cells)

    def _prefill(self, chunks: list[Chunk], outcome: Outcome) -> None:
        started = self.laps.now
        depth = mean_cells([chunk.sequence for chunk in chunks])
        copying = self._context.copying
        code = self._decode_chunks(chunks)
        self.laps.end("prefill")
        if not self._checked(code, [(chunk.sequence, chunk.length) for chunk in chunks], outcome):
            return
        row = -1
        for chunk in chunks:
            row += chunk.length
            completes = chunk.completes
            chunk.sequence.commit(chunk.length)
            if completes and chunk.sequence.known_token is not None:
                chunk.sequence.accept(chunk.sequence.known_token)
            elif completes:
                self._sample(chunk.sequence, row, outcome)
        seconds = self.laps.end("sample") - started
        if not copying:
            self._costs.prefill.observe(chunks[0].length, seconds, depth, len(chunks))
        self.counters["prefill_tokens"] += sum(chunk.length for chunk in chunks)
        outcome.prefilled += chunks

    def _decode_chunks(self, chunks: list[Chunk]) -> int:
        first = chunks[0].sequence
        if (picture := first.picture) is not None:
            start = first.cells - picture.start
            rows = picture.rows[start : start + chunks[0].length]
            return self._context.decode_rows(rows, first.cells, first.number, output=chunks[0].completes)
        batch = _Batch()
        for chunk in chunks:
            sequence = chunk.sequence
            tokens = list(sequence.prompt[sequence.cells : sequence.cells + chunk.length])
            batch.add(tokens, sequence.cells, sequence.number, output=chunk.completes)
        self.laps.end("fill")
        return self._context.decode(batch.tokens, batch.positions, batch.numbers, batch.outputs)

    def _checked(self, code: int, rows: list[tuple[Sequence, int]], outcome: Outcome) -> bool:
        """Whether a decode was done; those that it went wrong for are lost. Raises DecodeFailed for none."""
        if code == 0:
            return True
        lost = [sequence for sequence, count in rows if self._disagrees(sequence, count)]
        if not lost:
            raise DecodeFailed(f"llama_decode returned {code} for {len(rows)} sequences")
        outcome.lost += lost
        return False

    def _disagrees(self, sequence: Sequence, rows: int) -> bool:
        full = sequence.cells + rows > self._context_tokens
        return full or self._context.last_position(sequence.number) != sequence.cells - 1

    def _sample(self, sequence: Sequence, row: int, outcome: Outcome) -> None:
        draw = self._draws.take(sequence, row)
        if draw is not None:
            outcome.sampled.append(draw)
            if sequence.lookup is not None:
                sequence.lookup.add(draw.token)


class _Rows:
    """Which row of a decode batch belongs to whom; padding with the cells to keep."""

    def __init__(self) -> None:
        self.decode: list[tuple[Sequence, int]] = []
        self.padding: list[tuple[int, int]] = []
