"""Prefill batches: the prompts to read next, and the number of their tokens."""

from dataclasses import dataclass, field
from itertools import chain, islice, takewhile

from car_engine.batching.costs import KNOTS, StepCosts
from car_engine.batching.prefix import WORTH_TOKENS
from car_engine.batching.sequences import Demand, Sequence, SequenceTable, mean_cells

# Shorter chunks cost up to 9% of the tokens a second (8, simulated on Q4_K_M); users with a target of 30 ms would gain.
SMALLEST = WORTH_TOKENS
_LENGTHS = tuple(size for size in reversed(KNOTS) if size >= SMALLEST)
# Policy: every prompt after the first in the queue adds half of the time for one, up to this many times. It is the most
# by which a queue lengthens gaps. With 2.5 up to 20% fewer tokens a second, with 5 gaps that are up to twice as long.
_MORE_PER_PROMPT = 0.5
_MOST_TIMES = 3.5
# Policy, the length of an answer: a prompt of several steps counts as part of the queue for so many decodes. When such
# prompts come that often, short steps leave the decodes with few rows.
_QUEUED_FOR = 64


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """`length` prompt tokens of one sequence, from its first uncommitted one."""

    sequence: Sequence
    length: int

    @property
    def completes(self) -> bool:
        """Whether the prompt ends with this chunk, so that its last row needs logits."""
        return self.length == self.sequence.remaining


@dataclass(slots=True)
class Round:
    """Progress of the requests with one set of adapters through decodes and prefill batches."""

    decoded: float | None = None  # Expected seconds of the last decode, while a prefill batch may follow it.
    paused: float = 0.0  # Seconds between the last step and this one, in which cells moved or texts were embedded.
    oldest_led: bool = False  # The last prefill batch; the next is led by the prompt that is done soonest.
    decodes: int = 0
    long: dict[int, int] = field(default_factory=dict)  # Prompts of several steps by age, with their last decode.

    def next_lead(self, waiting: list[Sequence]) -> Sequence:
        """Return the prompt that leads the next batch: the oldest and the shortest, which must not wait, by turns.

        A prompt that was alone had the turn of the oldest, so that a shorter newcomer is next.
        """
        lead = min(waiting, key=lambda sequence: sequence.remaining) if self.oldest_led else waiting[0]
        self.oldest_led = lead is waiting[0]
        return lead

    def queue(self, waiting: list[Sequence]) -> int:
        """Return the number of prompts that wait, and of prompts that took several of the last decodes."""
        self.long = {order: last for order, last in self.long.items() if self.decodes - last < _QUEUED_FOR}
        return len(self.long.keys() | {sequence.order for sequence in waiting})


class PrefillPlanner:
    """Choose the prefill batch between two decodes.

    Beside decoders prompts get what the decode leaves of a step's target, more when they queue up or one can end before
    the oldest, and as long as the decode when that alone exceeds the target. Each prompt is read alone unless
    `batches_prompts`.
    """

    def __init__(
        self,
        costs: StepCosts,
        batch_tokens: int,
        *,
        step_target: float,
        idle_target: float,
        batches_prompts: bool,
    ) -> None:
        self._costs = costs
        self._batch_tokens = batch_tokens
        self._step_target = step_target
        self._idle_target = idle_target
        self._batches_prompts = batches_prompts

    def chunks(self, table: SequenceTable, demand: Demand, current: Round, decoded: float | None) -> list[PromptChunk]:
        """Return the chunks to prefill now, empty when it is time to decode.

        `decoded` is the expected time of a decode just before, in seconds.
        """
        waiting = demand.prefilling
        if not waiting or (demand.decoding and decoded is None):
            return []
        lead = current.next_lead(waiting)
        if decoded is None or not demand.decoding:
            return self._batch(table, waiting, lead, self._idle_target)
        if lead.order in current.long or self._length(lead, self._time(decoded, 1)) < lead.stretch:
            current.long[lead.order] = current.decodes
        times = min(1 + _MORE_PER_PROMPT * (current.queue(waiting) - 1), _MOST_TIMES)
        seconds = self._time(decoded, times, current.paused)
        if lead is not waiting[0]:
            # In pieces it would wait for a piece of the oldest between each two, so it may take what a full queue may.
            whole = self._costs.prefill(min(lead.stretch, self._batch_tokens), lead.cells)
            if whole <= self._time(decoded, _MOST_TIMES, current.paused):
                seconds = max(seconds, whole)
        return self._batch(table, waiting, lead, seconds)

    def _time(self, decoded: float, times: float, paused: float = 0.0) -> float:
        """Return the seconds for prompts beside decoders, which have waited for `paused` seconds already."""
        as_long = times * decoded if decoded > self._step_target else 0.0
        return max(times * self._step_target - decoded - paused, as_long)

    def _batch(
        self, table: SequenceTable, waiting: list[Sequence], lead: Sequence, seconds: float
    ) -> list[PromptChunk]:
        """Return the lead's chunk, and equal chunks of its neighbours, within time and batch.

        A piece of a reproducible prompt is computed whole and alone, however long it takes.
        """
        if lead.grid is not None:
            return [PromptChunk(lead, lead.stretch)]
        length = self._length(lead, seconds)
        if lead.images.at(lead.cells) is not None or not self._batches_prompts:
            return [PromptChunk(lead, length)]

        def fits(sequence: Sequence) -> bool:
            shares = sequence.grid is None and sequence.images.at(sequence.cells) is None
            return shares and sequence in waiting and sequence.stretch >= length

        # Neighbours of the lead that can prefill as many tokens: first above it, then below.
        above = takewhile(fits, table.sequences[lead.number + 1 :])
        below = takewhile(fits, reversed(table.sequences[: lead.number]))
        group = [lead]
        for sequence in islice(chain(above, below), len(waiting) - 1):
            longer = [*group, sequence]
            cost = self._costs.prefill(length, mean_cells(longer), len(longer))
            if len(longer) * length > self._batch_tokens or cost > seconds:
                break
            group = longer
        return [PromptChunk(sequence, length) for sequence in sorted(group, key=lambda sequence: sequence.number)]

    def _length(self, lead: Sequence, seconds: float) -> int:
        """Return all tokens of a prompt that are left, or the longest chunk within the time.

        Equal lengths let llama.cpp use its graph again.
        """
        left, most, depth = lead.stretch, self._batch_tokens, lead.cells
        if left <= most and self._costs.prefill(left, depth) <= seconds:
            return left
        fitting = (size for size in _LENGTHS if size <= min(left, most) and self._costs.prefill(size, depth) <= seconds)
        return next(fitting, min(SMALLEST, left, most))
