"""The step planner: which sequences decode in the next step, and which prompt tokens go with them."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from car_daemon.engine.batching.adapter_turns import AdapterSet
from car_daemon.engine.batching.costs import StepCosts
from car_daemon.engine.batching.runs import Span, plan_runs
from car_daemon.engine.batching.sequence import Sequence, mean_cells
from car_daemon.engine.batching.table import SequenceTable

# Every prompt that waits besides the first one adds this share to the time that one has, up to so many times that.
_SHARE_OF_MORE = 0.5
_MOST_SHARES = 3
# Costs drift: after so many steps of the same decoders their runs are planned again.
_LOOK_AGAIN = 16
# A size that is avoided because it was slow once would never be measured again: it has to be seen so often before, and
# is tried again every so many steps.
_TRIES = 3
_TRY_AGAIN_EVERY = 64
# Costs that are seen differ by some percent: a plan has to promise more than that.
_WORTH_IT = 0.95
# Prompts that come together are read in two halves where these cost at most so many times what all of them would.
_MOST_FOR_HALVES = 1.25


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
class Run:
    """One decode: a row of each of these sequences, and padding in others between and beside them."""

    sequences: list[Sequence]
    padding: list[int]

    @property
    def rows(self) -> int:
        """How many rows it has, guesses not counted."""
        return len(self.sequences) + len(self.padding)


@dataclass(frozen=True, slots=True)
class Step:
    """What to run next: decodes by ascending number, each sampled before the next, or chunks of one length."""

    decode: list[Run]
    prefill: list[Chunk]


@dataclass(slots=True)
class _Round:
    """Where one set of adapters is."""

    # What its last decode is expected to take, as long as a prefill batch may follow it.
    decoded: float | None = None
    # The prefill batches in which the oldest prompt and the one that is done soonest take turns.
    turns: int = 0
    # How long those who have just begun have waited for prompts of others.
    waited: float = 0.0
    # The youngest prompt of those of which one half was chosen before the other.
    halved: int = 0

    def take_turn(self, waiting: list[Sequence]) -> Sequence:
        """Return whose turn it is: the oldest prompt, or the one that is done soonest, which must not wait for all."""
        self.turns += 1
        return waiting[0] if self.turns % 2 else _soonest(waiting)


class StepPlanner:
    """Decide steps: a decode of every decoder and a prefill batch by turns, while there is work for both.

    Prompts get the time that is left of the target after the decode before them. Those that come together while nobody
    decodes are read in two parts before the first decode: half of them hear sooner, and the others hardly later.
    Where prompts do not share a batch each is read alone.
    """

    def __init__(
        self,
        costs: StepCosts,
        batch_tokens: int,
        *,
        step_target: float,
        idle_target: float,
        pads: bool,
        shares: bool = True,
    ) -> None:
        self._costs = costs
        self._batch_tokens = batch_tokens
        self._step_target = step_target
        self._idle_target = idle_target
        self._pads = pads
        self._shares = shares
        # Mutable state: where each set of adapters that has work is; the cheapest and the fewest runs of the last
        # decoders, the decodes since they were planned, and all decodes.
        self._rounds: dict[AdapterSet, _Round] = {}
        self._numbers: list[int] = []
        self._cheapest: list[Span] = []
        self._fewest: list[Span] = []
        self._age = 0
        self._steps = 0

    def plan(self, table: SequenceTable) -> Step:
        """Return the next step; empty when nothing has work."""
        current, decoding = self._round(table), table.decoding
        decoded, current.decoded = current.decoded, None
        if chunks := self._prefill(table, current, decoding, decoded):
            return Step([], chunks)
        current.waited = 0.0
        self._guess(decoding, table.context_tokens)
        runs = self._runs(decoding, table)
        current.decoded = sum(self._costs.decode.estimate(run.rows) for run in runs) if runs else None
        return Step(runs, [])

    def _round(self, table: SequenceTable) -> _Round:
        """Return where the set in turn is: another one's decode is no reason to prefill for this one."""
        if table.turn not in self._rounds:
            working = table.working
            self._rounds = {each: known for each, known in self._rounds.items() if each in working}
            self._rounds[table.turn] = _Round()
        return self._rounds[table.turn]

    def _runs(self, decoding: list[Sequence], table: SequenceTable) -> list[Run]:
        if not self._pads or len(decoding) <= 1:
            # What cannot drop a tail can have no padding, and llama.cpp does not split it by numbers.
            return [Run(decoding, [])] if decoding else []
        numbers = [sequence.number for sequence in decoding]
        if numbers != self._numbers or self._age >= _LOOK_AGAIN or not self._still_fits(table):
            self._numbers, self._age = numbers, 0
            self._fewest = self._planned(table, _by_number)
            self._cheapest = self._planned(table, self._costs.decode.estimate)
        self._age += 1
        self._steps += 1
        return [_run(decoding, *span) for span in (self._cheapest if self._saves() else self._fewest)]

    def _planned(self, table: SequenceTable, cost: Callable[[int], float]) -> list[Span]:
        return plan_runs(self._numbers, can_pad=table.can_pad, cost=cost, most=self._batch_tokens)

    def _saves(self) -> bool:
        """Whether other runs than the fewest are cheaper, by costs that were seen often enough, and lately."""
        known = all(self._costs.decode.seen(_width(span)) >= _TRIES for span in self._fewest)
        if not known or self._steps % _TRY_AGAIN_EVERY == 0:
            return False
        return self._seconds(self._cheapest) < _WORTH_IT * self._seconds(self._fewest)

    def _seconds(self, spans: list[Span]) -> float:
        return sum(self._costs.decode.estimate(_width(span)) for span in spans)

    def _still_fits(self, table: SequenceTable) -> bool:
        """Whether what the last plans pad has room still."""
        numbers = set(self._numbers)
        spans = {*self._cheapest, *self._fewest}
        padding = (number for low, high in spans for number in range(low, high + 1) if number not in numbers)
        return all(map(table.can_pad, padding))

    def _guess(self, decoding: list[Sequence], context_tokens: int) -> None:
        """Let a lone stream try several tokens at once: rows of several streams are put to better use by packing."""
        for sequence in decoding:
            sequence.guess = []
        if len(decoding) != 1 or (lookup := decoding[0].lookup) is None:
            return
        room = min(context_tokens - decoding[0].cells, self._batch_tokens) - 1
        decoding[0].guess = lookup.guess(self._costs.decode.estimate, room)

    def _prefill(
        self, table: SequenceTable, current: _Round, decoding: list[Sequence], decoded: float | None
    ) -> list[Chunk]:
        """Return the chunks to prefill now; none where it is time to decode."""
        waiting = table.prefilling
        if not waiting:
            return []
        if not decoding:
            return self._idle(table, waiting, current)
        if decoded is not None:
            seconds = self._prefill_seconds(decoded, len(waiting))
            return self._batch(table, current.take_turn(waiting), seconds, len(waiting))
        if all(sequence.fresh for sequence in decoding):
            return self._opening(table, waiting, current)
        return []

    def _idle(self, table: SequenceTable, waiting: list[Sequence], current: _Round) -> list[Chunk]:
        """Return a batch while nobody decodes; the last tokens of a lone prompt one by one where that costs less."""
        current.waited = 0.0
        lead = current.take_turn(waiting)
        chunks = self._batch(table, lead, self._idle_target, self._part(waiting, lead, current))
        if len(waiting) == 1 and lead.picture is None and self._costs_less_by_ones(chunks[0].length):
            return [Chunk(lead, 1)]
        return chunks

    def _opening(self, table: SequenceTable, waiting: list[Sequence], current: _Round) -> list[Chunk]:
        """Return one batch more before those who have just begun go on, if it brings a first token in time."""
        lead = _soonest(waiting)
        seconds = self._prefill_seconds(0.0, len(waiting)) - current.waited
        chunks = self._batch(table, lead, seconds, self._part(waiting, lead, current))
        taken = self._prefill_takes([chunk.sequence for chunk in chunks], chunks[0].length)
        if taken > seconds or chunks[0].length < lead.remaining:
            return []
        current.waited += taken
        return chunks

    def _part(self, waiting: list[Sequence], lead: Sequence, current: _Round) -> int:
        """Return how many prompts to read at once: half of those that came since, where that costs little; or all."""
        half, youngest = len(waiting) // 2, waiting[-1].order
        if not half or youngest <= current.halved or not self._halves_well(len(waiting), half, lead):
            return len(waiting)
        current.halved = youngest
        return half

    def _halves_well(self, prompts: int, half: int, lead: Sequence) -> bool:
        """Whether prompts like this one can be read in two halves for little more than what all of them cost."""
        cost = self._costs.prefill.estimate
        both, whole = 2 * cost(lead.alike, lead.cells, half), cost(lead.alike, lead.cells, prompts)
        return both <= _MOST_FOR_HALVES * whole

    def _batch(self, table: SequenceTable, lead: Sequence, seconds: float, most: int) -> list[Chunk]:
        length = self._costs.chunk_within(
            seconds, lead.alike, self._batch_tokens, lead.cells, patience=self._step_target
        )
        if lead.picture is not None or not self._shares:
            return [Chunk(lead, length)]
        return [Chunk(sequence, length) for sequence in self._sharing(lead, length, seconds, most, table)]

    def _prefill_seconds(self, decoded: float, prompts: int) -> float:
        """Return the time for prompts, which grows with how many wait: so that they do not queue up.

        The step takes its target, but prompts get at least as long as the decoders.
        """
        shares = min(1 + _SHARE_OF_MORE * (prompts - 1), _MOST_SHARES)
        return max(shares * self._step_target - decoded, shares * decoded)

    def _costs_less_by_ones(self, tokens: int) -> bool:
        """Whether the tokens cost less one by one than together: a second row can cost more than the first."""
        cost = self._costs.decode.estimate
        return tokens * cost(1) < _WORTH_IT * cost(tokens)

    def _sharing(self, lead: Sequence, length: int, seconds: float, most: int, table: SequenceTable) -> list[Sequence]:
        """Return the run of at most `most` neighbours whose chunks are as long as the lead's, within time and batch."""

        def shares(sequence: Sequence) -> bool:
            return table.prefills(sequence) and sequence.picture is None and sequence.alike >= length

        above = list(takewhile(shares, table.sequences[lead.number + 1 :]))
        below = list(takewhile(shares, reversed(table.sequences[: lead.number])))
        run = [lead]
        for sequence in (above + below)[: most - 1]:
            longer = [*run, sequence]
            if len(longer) * length > self._batch_tokens or self._prefill_takes(longer, length) > seconds:
                break
            run = longer
        return sorted(run, key=lambda sequence: sequence.number)

    def _prefill_takes(self, sequences: list[Sequence], length: int) -> float:
        return self._costs.prefill.estimate(length, mean_cells(sequences), len(sequences))


def _soonest(waiting: list[Sequence]) -> Sequence:
    return min(waiting, key=lambda sequence: sequence.remaining)


def _by_number(rows: int) -> float:
    """Rank few runs before few rows, but no long padding before one run more."""
    return 1 + rows / 8


def _width(span: Span) -> int:
    return span[1] - span[0] + 1


def _run(decoding: list[Sequence], low: int, high: int) -> Run:
    sequences = [sequence for sequence in decoding if low <= sequence.number <= high]
    taken = {sequence.number for sequence in sequences}
    return Run(sequences, [number for number in range(low, high + 1) if number not in taken])
