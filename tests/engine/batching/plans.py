"""Planners, costs and tables for tests of steps."""

from car_base.ipc.types import NO_ADAPTERS
from car_engine.batching.costs import StepCosts
from car_engine.batching.planner import Step, StepPlanner
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import Demand, SequenceTable
from tests.engine.fakes import begin

CONTEXT = 4096
STEP_TARGET_S, IDLE_TARGET_S = 0.05, 0.2


def costs_of(decode: dict[int, float] | None = None, prefill: float = 0.001) -> StepCosts:
    """Return costs of decode steps by rows, and of prefill in seconds a token."""
    return StepCosts(decode or {1: 0.010, 8: 0.024}, {1: prefill, 512: 512 * prefill})


ATTENTION = Memory()


def planner_of(
    costs: StepCosts | None = None,
    *,
    batch_tokens: int = 512,
    memory: Memory = ATTENTION,
    batches_prompts: bool = True,
) -> StepPlanner:
    return StepPlanner(
        costs or costs_of(),
        batch_tokens,
        step_target=STEP_TARGET_S,
        idle_target=IDLE_TARGET_S,
        memory=memory,
        batches_prompts=batches_prompts,
    )


def table_of(*prompts: int | None, decoding: int = 10, count: int = 0) -> SequenceTable:
    """Return sequences: None is idle, 0 decodes, a number has that many prompt tokens to prefill."""
    table = SequenceTable(max(count, len(prompts)), CONTEXT)
    for _ in prompts:
        begin(table, [1] * CONTEXT)
    for sequence, prompt in zip(table.sequences, prompts, strict=False):
        order = sequence.order
        sequence.clear()
        if prompt == 0:
            sequence.start([1] * (decoding - 1), order)
            sequence.commit(decoding)
            sequence.accept(2)
        elif prompt:
            sequence.start([1] * prompt, order)
    return table


def demand_of(table: SequenceTable) -> Demand:
    """Return the sequences without adapters that need rows."""
    return table.demand().get(NO_ADAPTERS, Demand())


def after_decode(planner: StepPlanner, table: SequenceTable) -> Step:
    """Return the step that follows one with a row of every decoder."""
    assert planner.plan(table, now=0.0).decode
    return planner.plan(table, now=0.0)


def chunks(step: Step) -> list[tuple[int, int]]:
    return [(chunk.sequence.number, chunk.length) for chunk in step.prefill]


def numbers(step: Step) -> list[int]:
    return [sequence.number for run in step.decode for sequence in run.sequences]


def padding(step: Step) -> list[int]:
    return [number for run in step.decode for number in run.padding]
