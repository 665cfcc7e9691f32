"""Targets that take turns: what the machine does meanwhile meets all of them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median

from msgspec import Struct

from benchmarks.bystanders import Bystanders
from benchmarks.targets.case import Case, Target
from car_client.carctl.load.figures import Figures


class Compared(Struct, frozen=True):
    """The runs of each target on one case, in the order in which they took turns; what others had of the cores."""

    case: Case
    runs: dict[str, list[Figures]]
    bystanders: dict[str, list[float]]

    def tokens_per_s(self, target: str) -> float:
        """Return the median of a target's throughput."""
        return median(run.tokens_per_s for run in self.runs[target])

    def median_of(self, target: str, read: Callable[[Figures], float]) -> float:
        """Return the median of a figure of a target."""
        return median(map(read, self.runs[target]))

    def ratio(self, target: str, other: str) -> float:
        """Return the median of the ratios of throughput, turn by turn."""
        pairs = zip(self.runs[target], self.runs[other], strict=True)
        return median(one.tokens_per_s / two.tokens_per_s for one, two in pairs)


def compare(case: Case, targets: Sequence[Target], turns: int, bystanders: Bystanders) -> Compared:
    """Measure every target in every turn, all of them started before; every other turn goes backwards."""
    runs: dict[str, list[Figures]] = {target.name: [] for target in targets}
    others: dict[str, list[float]] = {target.name: [] for target in targets}
    with ExitStack() as stack:
        measures = [(target.name, stack.enter_context(target.started(case))) for target in targets]
        for turn in range(turns):
            for name, measure in measures if turn % 2 == 0 else reversed(measures):
                figures, share = bystanders.without(partial(measure, case.workload))
                runs[name].append(figures)
                others[name].append(share)
    return Compared(case, runs, others)
