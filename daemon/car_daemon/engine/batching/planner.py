"""The step planner: which sequences decode in the next step, and which prompt tokens go with them."""

from dataclasses import dataclass
from itertools import pairwise, takewhile

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.sequence import Sequence
from car_daemon.engine.batching.table import SequenceTable

_PREFILLS_IN_TURN = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` prompt tokens of one sequence, from its first uncommitted one."""

    sequence: Sequence
    length: int

    @property
    def completes(self) -> bool:
        """Whether the prompt ends with this chunk, so that its last row asks for logits."""
        return self.length == self.sequence.remaining


@dataclass(frozen=True, slots=True)
class Step:
    """What to run next: a decode batch of rows and padding by ascending number, then a prefill batch."""

    decode: list[Sequence]
    padding: list[int]
    prefill: list[Chunk]


class StepPlanner:
    """Decide steps: every decoder has a row in each; prompts get the time that is left of the target."""

    def __init__(
        self, costs: StepCosts, batch_tokens: int, *, step_target: float, idle_target: float, pads: bool
    ) -> None:
        self._costs = costs
        self._batch_tokens = batch_tokens
        self._step_target = step_target
        self._idle_target = idle_target
        self._pads = pads
        # Mutable state: whose turn it is among the prompts that prefill.
        self._turn = 0

    def plan(self, table: SequenceTable) -> Step:
        """Return the next step; empty when nothing has work."""
        decoding = table.decoding
        self._guess(decoding, table.context_tokens)
        padding = self._padding(decoding, table) if self._pads else []
        return Step(decoding, padding, self._prefill(table, len(decoding) + len(padding)))

    def _guess(self, decoding: list[Sequence], context_tokens: int) -> None:
        """Let a lone stream try several tokens at once: rows of several streams are put to better use by packing."""
        for sequence in decoding:
            sequence.guess = []
        if len(decoding) != 1 or (lookup := decoding[0].lookup) is None:
            return
        room = min(context_tokens - decoding[0].cells, self._batch_tokens) - 1
        decoding[0].guess = lookup.guess(self._costs.decode.estimate, room)

    def _padding(self, decoding: list[Sequence], table: SequenceTable) -> list[int]:
        """Return the holes between runs of consecutive numbers that cost less filled than left open."""
        padding: list[int] = []
        runs = _consecutive([sequence.number for sequence in decoding])
        length = len(runs[0]) if runs else 0
        for before, after in pairwise(runs):
            hole = range(before[-1] + 1, after[0])
            joined = length + len(hole) + len(after)
            if self._worth_joining(length, len(after), joined) and all(map(table.can_pad, hole)):
                padding.extend(hole)
                length = joined
            else:
                length = len(after)
        return padding

    def _worth_joining(self, before: int, after: int, joined: int) -> bool:
        cost = self._costs.decode.estimate
        return joined <= self._batch_tokens and cost(joined) < cost(before) + cost(after)

    def _prefill(self, table: SequenceTable, rows: int) -> list[Chunk]:
        waiting = table.prefilling
        if not waiting:
            return []
        turns = waiting[:_PREFILLS_IN_TURN]
        lead = turns[self._turn % len(turns)]
        self._turn += 1
        seconds = self._prefill_seconds(rows)
        length = self._costs.chunk_within(seconds, lead.alike, self._batch_tokens, lead.cells)
        if lead.picture is not None:
            return [Chunk(lead, length)]
        return [Chunk(sequence, length) for sequence in self._sharing(lead, length, seconds, table)]

    def _prefill_seconds(self, rows: int) -> float:
        if not rows:
            return self._idle_target
        decode = self._costs.decode.estimate(rows)
        return max(self._step_target, 2 * decode) - decode

    def _sharing(self, lead: Sequence, length: int, seconds: float, table: SequenceTable) -> list[Sequence]:
        """Return the run of neighbours whose chunks are as long as the lead's, within time and batch."""

        def shares(sequence: Sequence) -> bool:
            return table.prefills(sequence) and sequence.picture is None and sequence.alike >= length

        above = list(takewhile(shares, table.sequences[lead.number + 1 :]))
        below = list(takewhile(shares, reversed(table.sequences[: lead.number])))
        run = [lead]
        for sequence in above + below:
            tokens = (len(run) + 1) * length
            if tokens > self._batch_tokens or self._costs.prefill.estimate(tokens, lead.cells) > seconds:
                break
            run.append(sequence)
        return sorted(run, key=lambda sequence: sequence.number)


def _consecutive(numbers: list[int]) -> list[list[int]]:
    """Split ascending numbers into runs without holes."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
