"""A long prompt beside decoders on a simulated machine: the planner decides, a table of costs is the clock."""

from dataclasses import dataclass, field

from benchmarks.simulation import Machine
from car_engine.batching.planner import Step, StepPlanner
from car_engine.batching.prefill import SMALLEST
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import SequenceTable, mean_cells
from tests.engine.batching.plans import table_of

IDLE_TARGET_S = 0.75
BATCH_TOKENS = 2048


@dataclass
class Joined:
    """Seconds until each prompt's first token, and what the decoders saw until the last of them."""

    firsts: dict[int, float] = field(default_factory=dict)  # By number of the sequence.
    gaps: list[tuple[float, float]] = field(default_factory=list)  # Each with the smallest chunk's time at its depth.

    @property
    def first(self) -> float:
        """The time of the last first token."""
        return max(self.firsts.values())


def joined(machine: Machine, prompts: tuple[int, ...], *, decoders: int, target: float) -> Joined:
    """Return what prompts that join decoders see, and what the decoders see."""
    costs = machine.costs
    planner = StepPlanner(costs, BATCH_TOKENS, step_target=target, idle_target=IDLE_TARGET_S, memory=Memory())
    table = table_of(*[0] * decoders, *prompts, decoding=16)
    run = _Run(machine, table)
    waiting = set(range(decoders, decoders + len(prompts)))
    while waiting - run.found.firsts.keys():
        step = planner.plan(table, now=run.now)
        run.do(step)
        for batch in step.decode:
            depth = mean_cells(batch.sequences)
            costs.decoded(batch.rows, machine.decode_seconds(batch.rows, depth), depth)
        if step.prefill:
            length, prompts_in = step.prefill[0].length, len(step.prefill)
            costs.prefilled(length, run.last, run.depth, prompts_in)
    return run.found


class _Run:
    """The time that steps take on a machine, and the gaps between the tokens of each decoder."""

    def __init__(self, machine: Machine, table: SequenceTable) -> None:
        self._machine = machine
        self._table = table
        self._sampled: dict[int, float] = {}  # The time of each decoder's last token.
        self._deepest = 0  # Of the chunks since the last decode.
        self.found = Joined()
        self.now = self.last = 0.0
        self.depth = 0

    def do(self, step: Step) -> None:
        """Let the time of a step pass."""
        for batch in step.decode:
            self.now += self._machine.decode_seconds(batch.rows, mean_cells(batch.sequences))
            for sequence in batch.sequences:
                sequence.commit(1)
                self._sample(sequence.number)
        if not step.prefill:
            return
        chunks = step.prefill
        self.depth = mean_cells([chunk.sequence for chunk in chunks])
        self.last = self._machine.prefill_seconds(chunks[0].length, self.depth, len(chunks))
        self.now += self.last
        for chunk in chunks:
            completes = chunk.completes
            chunk.sequence.commit(chunk.length)
            self._deepest = max(self._deepest, chunk.sequence.cells - chunk.length)
            if completes:
                chunk.sequence.accept(1)
                self.found.firsts[chunk.sequence.number] = self.now

    def _sample(self, number: int) -> None:
        gap = self.now - self._sampled.get(number, self.now)
        self._sampled[number] = self.now
        least = self._machine.prefill_seconds(SMALLEST, self._deepest)
        self.found.gaps.append((gap, least))
