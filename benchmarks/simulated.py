"""Latencies of the step planner on a simulated machine, beside steps that take every prompt whole.

`python -m benchmarks.simulated` takes seconds and finds the same on every machine.
"""

from benchmarks.machines import MACHINES, TWO_CORES
from benchmarks.report import figure, markdown
from benchmarks.simulation import Machine, Planner, Simulation
from car_base.capacity.curve import BATCH_SIZES
from car_base.ipc.engine_settings import STEP_TARGET_MS
from car_base.ipc.types import NO_ADAPTERS
from car_client.carctl.bench.figures import Figures
from car_client.carctl.bench.workload import Lengths, Workload
from car_engine.assembly import IDLE_TARGET_S
from car_engine.batching.costs import StepCosts
from car_engine.batching.planner import Step, StepPlanner
from car_engine.batching.prefill import PromptChunk
from car_engine.batching.reuse.index import Memory
from car_engine.batching.sequences import Demand, SequenceTable

SEQUENCES = 16
ANSWERS = Lengths(15, 105)
REQUESTS, WARM_UP_S = 300, 5.0
# Clients, prompts and answers: the last three cases have clients that ask in step.
CASES = [
    *((clients, Lengths(16, 16), ANSWERS) for clients in (2, 8, 16)),
    *((clients, Lengths(8, 64), ANSWERS) for clients in (8, 16)),
    *((clients, Lengths(100, 400), ANSWERS) for clients in (2, 4, 8, 16)),
    (8, Lengths(20, 1000), ANSWERS),
    (8, Lengths(400, 400), Lengths(50, 50)),
    *((clients, Lengths(16, 16), Lengths(60, 60)) for clients in (4, 8, 16)),
]
HEADINGS = (
    "machine; clients, prompts, answers; steps by",
    "tokens/s",
    "first token p50, p99 ms",
    "between tokens p50, p99 ms",
)


class PromptsFirst:
    """Every prompt whole before anybody decodes: the least work, and the longest pauses."""

    def __init__(self, costs: StepCosts) -> None:
        self._decodes = planner(costs)

    def plan(self, table: SequenceTable, now: float) -> Step:
        """Return the next step; empty when nothing has work."""
        waiting = table.demand().get(NO_ADAPTERS, Demand()).prefilling
        if not waiting:
            return self._decodes.plan(table, now)
        length = waiting[0].remaining
        return Step([], [PromptChunk(sequence, length) for sequence in waiting if sequence.remaining == length])


def planner(costs: StepCosts) -> StepPlanner:
    """Return the daemon's planner with its defaults."""
    rows = BATCH_SIZES["cpu"].call
    return StepPlanner(costs, rows, step_target=STEP_TARGET_MS / 1000, idle_target=IDLE_TARGET_S, memory=Memory())


def simulated(
    clients: int,
    prompts: Lengths,
    answers: Lengths = ANSWERS,
    *,
    machine: Machine = TWO_CORES,
    prompts_first: bool = False,
) -> Figures:
    """Return what so many clients see that ask again at once."""
    costs = machine.costs
    decides: Planner = PromptsFirst(costs) if prompts_first else planner(costs)
    workload = Workload(clients=clients, requests=REQUESTS, warm_up=WARM_UP_S, prompts=prompts, answers=answers)
    return Simulation(decides, costs, machine, SEQUENCES).run(workload)


def row(name: str, found: Figures) -> list[str]:
    """Return a line of the table."""
    spreads = (found.ttft_ms, found.itl_ms)
    return [name, figure(found.tokens_per_s), *(f"{figure(each.p50)}, {figure(each.p99)}" for each in spreads)]


def main() -> None:
    """Simulate and print."""
    rows = []
    for name, machine in MACHINES.items():
        for clients, prompts, answers in CASES:
            case = f"{name}; {clients}, {prompts}, {answers}"
            rows.append(row(f"{case}; card", simulated(clients, prompts, answers, machine=machine)))
            whole = simulated(clients, prompts, answers, machine=machine, prompts_first=True)
            rows.append(row(f"{case}; prompts first", whole))
    print(markdown(HEADINGS, rows))


if __name__ == "__main__":
    main()
