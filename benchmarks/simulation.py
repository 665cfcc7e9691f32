"""A closed loop of clients on the step planner alone: what steps cost comes from a table, and no time passes.

The planner has no clock and no engine, so its choices can be compared without the noise of a machine.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from car_client.carctl.bench.figures import Figures, TimedAnswer, summary
from car_client.carctl.bench.workload import PlannedRequest, Workload
from car_engine.batching.costs import StepCosts, between
from car_engine.batching.planner import Step
from car_engine.batching.prefill import PromptChunk
from car_engine.batching.sequences import Sequence, SequenceTable, mean_cells

_CONTEXT_TOKENS = 8192
# What passes between the last token of an answer and the arrival of the next request, in seconds.
_ASKS_AGAIN_S = 0.001
_TOKEN = 5
_MICRO_BATCH = 512


class Machine:
    """Seconds of a decode by rows and of a chunk by tokens, and what a row or token adds for each cell before it.

    Sizes between the given ones take what lies between their seconds. The rows of a decode attend as the shortest
    chunks do.
    """

    def __init__(
        self, decode: Mapping[int, float], prefill: Mapping[int, float], per_cell: Mapping[int, float]
    ) -> None:
        self._decode = decode
        self._prefill = prefill
        self._per_cell = per_cell

    def decode_seconds(self, rows: int, depth: int = 0) -> float:
        """Return what a decode takes whose rows have so many cells before them."""
        return between(self._decode, rows) + between(self._per_cell, 1) * rows * depth

    def prefill_seconds(self, length: int, depth: int, prompts: int = 1) -> float:
        """Return the time of a chunk of each of some prompts after so many cells: llama.cpp cuts it into micro-batches.

        What a token takes for each cell before it depends on the length of the chunk of its own prompt.
        """
        rows = sum(between(self._prefill, size) for _, size in _micro_batches(length * prompts))
        cells = (between(self._per_cell, size) * size * (depth + start) for start, size in _micro_batches(length))
        return rows + prompts * sum(cells)

    @property
    def costs(self) -> StepCosts:
        """The costs that an engine has measured at its start."""
        rows = {size: self.decode_seconds(size) for size in (1, 2, 4, 8, 16)}
        return StepCosts(rows, {size: self.prefill_seconds(size, 0) for size in (8, 16, 64, 256)})


def _micro_batches(tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the size of each."""
    for start in range(0, tokens, _MICRO_BATCH):
        yield start, min(_MICRO_BATCH, tokens - start)


class Planner(Protocol):
    """The planner of steps."""

    def plan(self, table: SequenceTable, now: float) -> Step:
        """Return the next step; empty when nothing has work."""
        ...


class _Arrival(NamedTuple):
    moment: float
    request: PlannedRequest


@dataclass(slots=True)
class _Lane:
    asked: float
    request: PlannedRequest
    came: list[float]

    @property
    def answer(self) -> TimedAnswer:
        return TimedAnswer(self.asked, self.came, len(self.came), len(self.request.prompt))


class Simulation:
    """The clients of a workload on the sequences of one engine; it runs once."""

    def __init__(self, planner: Planner, costs: StepCosts, machine: Machine, sequences: int) -> None:
        self._planner = planner
        self._costs = costs
        self._machine = machine
        # Mutable state: the time, who is about to arrive, what runs by its sequence, and what ended.
        self._now = 0.0
        self._table = SequenceTable(sequences, _CONTEXT_TOKENS)
        self._arrivals: deque[_Arrival] = deque()
        self._lanes: dict[int, _Lane] = {}
        self._answers: list[TimedAnswer] = []

    def run(self, workload: Workload) -> Figures:
        """Return what its clients see; the workload ends after so many requests."""
        if workload.requests is None or workload.clients > len(self._table.sequences):
            raise ValueError("a simulation takes a number of requests, and no more clients than sequences")
        requests = workload.all_requests()
        self._arrivals += (
            _Arrival(0.0, request) for _, request in zip(range(workload.clients), requests, strict=False)
        )
        while self._arrivals or self._lanes:
            self._admit()
            step = self._planner.plan(self._table, self._now)
            self._decode(step)
            self._prefill(step.prefill)
            self._end_finished(requests)
        # The last clients have no successors: what counts ends with the first sequence that nobody takes.
        last = self._answers[-workload.clients].piece_times[-1]
        return summary(self._answers, workload.warm_up, last, 0.0)

    def _admit(self) -> None:
        if not self._lanes:
            self._now = max(self._now, self._arrivals[0].moment)
        while self._arrivals and self._arrivals[0].moment <= self._now:
            arrival = self._arrivals.popleft()
            sequence = self._table.idle[0]
            sequence.start([_TOKEN] * len(arrival.request.prompt), self._table.next_order())
            self._lanes[sequence.number] = _Lane(arrival.moment, arrival.request, [])

    def _decode(self, step: Step) -> None:
        for batch in step.decode:
            depth = mean_cells(batch.sequences)
            seconds = self._machine.decode_seconds(batch.rows, depth)
            self._now += seconds
            for sequence in batch.sequences:
                sequence.commit(1)
                self._take(sequence)
            self._costs.decoded(batch.rows, seconds, depth)

    def _prefill(self, chunks: list[PromptChunk]) -> None:
        if not chunks:
            return
        depth = mean_cells([chunk.sequence for chunk in chunks])
        seconds = self._machine.prefill_seconds(chunks[0].length, depth, len(chunks))
        self._now += seconds
        self._costs.prefilled(chunks[0].length, seconds, depth, len(chunks))
        for chunk in chunks:
            completes = chunk.completes
            chunk.sequence.commit(chunk.length)
            if completes:
                self._take(chunk.sequence)

    def _take(self, sequence: Sequence) -> None:
        sequence.accept(_TOKEN)
        self._lanes[sequence.number].came.append(self._now)

    def _end_finished(self, requests: Iterator[PlannedRequest]) -> None:
        for number, lane in list(self._lanes.items()):
            if len(lane.came) == lane.request.max_tokens:
                self._answers.append(lane.answer)
                self._table.sequences[number].clear()
                del self._lanes[number]
                if (request := next(requests, None)) is not None:
                    self._arrivals.append(_Arrival(self._now + _ASKS_AGAIN_S, request))
