"""Prefill batches: the prompts to read next, and the number of their tokens."""

from dataclasses import dataclass, field
from itertools import chain, islice, takewhile

from car_daemon.engine.batching.costs import CHUNKS, PrefillTime, StepCosts
from car_daemon.engine.batching.packing import WORTH_IT
from car_daemon.engine.batching.sequence import Sequence, mean_cells
from car_daemon.engine.batching.table import Demand, SequenceTable

# Every prompt after the first in the queue adds this part of the time for one, up to a maximum of this many times.
_MORE_PER_PROMPT = 0.5
_MOST_TIMES = 3.5
# A prompt that took more than one step counts as part of the queue for this many decodes: where prompts come so often,
# short steps leave the decodes with few rows.
_QUEUED_FOR = 64
# Prompts that come together are read in two halves where these cost at most this many times the whole; so is a short
# prompt beside decoders, the decode between its halves included.
_MOST_FOR_HALVES = 1.25
_SHORT = 2 * CHUNKS[0]


@dataclass(frozen=True, slots=True)
class Chunk:
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
    turns: int = 0  # Prefill batches; the oldest prompt and the shortest one lead them by turns.
    waited: float = 0.0  # Seconds that requests with a first token have waited for prompts of others.
    halved: int = 0  # Age of the youngest prompt of the last burst that was cut in half.
    decodes: int = 0
    passed: int = -1  # The last decode after which prompts had no turn, because a pause had taken it.
    long: dict[int, int] = field(default_factory=dict)  # Prompts of several steps by age, with their last decode.

    def next_lead(self, waiting: list[Sequence]) -> Sequence:
        """Return the prompt that leads the next batch: the oldest, or the shortest, which must not wait for all."""
        self.turns += 1
        return waiting[0] if self.turns % 2 else _shortest(waiting)

    def queue(self, waiting: list[Sequence]) -> int:
        """Return the number of prompts that wait, and of those that were read in the last decodes and took several."""
        self.long = {order: last for order, last in self.long.items() if self.decodes - last < _QUEUED_FOR}
        return len(self.long.keys() | {sequence.order for sequence in waiting})


class PrefillPlanner:
    """Choose the prefill batch between two decodes.

    Prompts get the time that is left of the target after the decode before them. Prompts that come together while the
    engine is idle are read in two halves before the first decode: half of them have their first token sooner, and the
    others hardly later. Where prompts cannot share a batch (`batches_prompts` False) each is read alone.
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

    def chunks(self, table: SequenceTable, demand: Demand, current: Round, decoded: float | None) -> list[Chunk]:
        """Return the chunks to prefill now, empty when it is time to decode.

        `decoded` is the expected time of a decode just before, in seconds.
        """
        waiting = demand.prefilling
        if not waiting:
            return []
        if not demand.decoding:
            current.waited = 0.0
            lead = current.next_lead(waiting)
            time = PrefillTime(self._idle_target)
            chunks = self._batch(table, waiting, lead, time, self._part(waiting, lead, current))
            # The last tokens of a lone prompt go one by one where a second row costs more than the first.
            tokens, cost = chunks[0].length, self._costs.decode.estimate
            alone = len(waiting) == 1 and lead.images.at(lead.cells) is None and lead.grid is None
            return [Chunk(lead, 1)] if alone and tokens * cost(1) < WORTH_IT * cost(tokens) else chunks
        if decoded is not None:
            if self._passes(waiting, current, decoded):
                return []
            lead = current.next_lead(waiting)
            if lead.order in current.long or self._length(lead, self._time(decoded, 1)) < lead.stretch:
                current.long[lead.order] = current.decodes
            time = self._time(decoded, current.queue(waiting), current.paused)
            chunks = self._batch(table, waiting, lead, time, len(waiting))
            return chunks if len(waiting) > 1 else [self._first_half(chunks[0], len(demand.decoding))]
        # Where no request has a token after its prompt in the cells, no answer pauses.
        if all(sequence.remaining >= 0 for sequence in demand.decoding):
            return self._opening(table, waiting, current)
        return []

    def _passes(self, waiting: list[Sequence], current: Round, decoded: float) -> bool:
        """Return whether answers go on before prompts, because a pause took the turn of these; never twice in a row."""
        smallest = min(self._costs.prefill.estimate(CHUNKS[0], sequence.cells) for sequence in waiting)
        turn = max(smallest, self._time(decoded, current.queue(waiting)).seconds)
        if current.paused <= turn or current.decodes == current.passed + 1:
            return False
        current.passed = current.decodes
        return True

    def _opening(self, table: SequenceTable, waiting: list[Sequence], current: Round) -> list[Chunk]:
        """Return one more batch before requests with a first token continue, if it brings another first token."""
        lead = _shortest(waiting)
        time = PrefillTime(self._time(0.0, len(waiting)).seconds - current.waited)
        chunks = self._batch(table, waiting, lead, time, self._part(waiting, lead, current))
        needed = self._batch_seconds([chunk.sequence for chunk in chunks], chunks[0].length)
        if needed > time.seconds or chunks[0].length < lead.remaining:
            return []
        current.waited += needed
        return chunks

    def _first_half(self, chunk: Chunk, decoders: int) -> Chunk:
        """Return half of a chunk that ends a prompt, where that is short and its first token comes hardly later by it.

        Answers beside it wait for half as long then.
        """
        sequence, length, half = chunk.sequence, chunk.length, (chunk.length + 1) // 2
        if length > _SHORT or not chunk.completes or sequence.grid is not None:
            return chunk
        cost, depth = self._costs.prefill.estimate, sequence.cells
        between = self._costs.decode.estimate(decoders)
        near = 2 * cost(half, depth) + between <= _MOST_FOR_HALVES * cost(length, depth)
        return Chunk(sequence, half) if near and sequence.images.at(depth) is None else chunk

    def _part(self, waiting: list[Sequence], lead: Sequence, current: Round) -> int:
        """Return how many prompts to read at once: half of a new burst where that costs little more, otherwise all."""
        prompts, half, youngest = len(waiting), len(waiting) // 2, waiting[-1].order
        if not half or youngest <= current.halved:
            return prompts
        cost = self._costs.prefill.estimate
        halves, whole = 2 * cost(lead.stretch, lead.cells, half), cost(lead.stretch, lead.cells, prompts)
        if halves > _MOST_FOR_HALVES * whole:
            return prompts
        current.halved = youngest
        return half

    def _time(self, decoded: float, prompts: int, paused: float = 0.0) -> PrefillTime:
        """Return the time for prompts, which grows with the queue, so that it is worked off.

        Answers have waited for `paused` seconds already.

        Each prompt after the first adds a part of the target, and of the decode. Where the decode alone exceeds the
        target, prompts get at least as long as the decoders.
        """
        times = min(1 + _MORE_PER_PROMPT * (prompts - 1), _MOST_TIMES)
        least = times if decoded > self._step_target else times - 1
        target = times * self._step_target
        left = target - decoded - paused
        return PrefillTime(max(left, least * decoded), decoded, max(0.0, left), target)

    def _batch(
        self, table: SequenceTable, waiting: list[Sequence], lead: Sequence, time: PrefillTime, most: int
    ) -> list[Chunk]:
        """Return the lead's chunk, and equal ones of at most `most` prompts in all, within time and batch.

        A piece of a reproducible prompt is computed whole and alone, however long it takes.
        """
        if lead.grid is not None:
            return [Chunk(lead, lead.stretch)]
        length = self._length(lead, time)
        if lead.images.at(lead.cells) is not None or not self._batches_prompts:
            return [Chunk(lead, length)]

        def fits(sequence: Sequence) -> bool:
            shares = sequence.grid is None and sequence.images.at(sequence.cells) is None
            return shares and sequence in waiting and sequence.stretch >= length

        # Neighbours of the lead that can prefill as many tokens: first above it, then below.
        sides = [
            list(takewhile(fits, table.sequences[lead.number + 1 :])),
            list(takewhile(fits, reversed(table.sequences[: lead.number]))),
        ]
        if most < len(waiting):
            # The shorter side first, so that the other part of a burst are neighbours too.
            sides.sort(key=len)
        group = [lead]
        for sequence in islice(chain(*sides), most - 1):
            longer = [*group, sequence]
            if len(longer) * length > self._batch_tokens or self._batch_seconds(longer, length) > time.seconds:
                break
            group = longer
        return [Chunk(sequence, length) for sequence in sorted(group, key=lambda sequence: sequence.number)]

    def _length(self, lead: Sequence, time: PrefillTime) -> int:
        return self._costs.chunk(time, lead.stretch, self._batch_tokens, lead.cells)

    def _batch_seconds(self, sequences: list[Sequence], length: int) -> float:
        return self._costs.prefill.estimate(length, mean_cells(sequences), len(sequences))


def _shortest(waiting: list[Sequence]) -> Sequence:
    return min(waiting, key=lambda sequence: sequence.remaining)
