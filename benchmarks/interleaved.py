"""Targets that take turns: what the machine does meanwhile meets all of them."""

from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct

from benchmarks.targets.case import Case, Target
from car_client.carctl.load.figures import Figures


class Compared(Struct, frozen=True):
    """The runs of each target on one case, in the order in which they took turns."""

    case: Case
    runs: dict[str, list[Figures]]

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


def compare(case: Case, targets: Sequence[Target], turns: int) -> Compared:
    """Measure every target in every turn; every other turn goes backwards."""
    runs: dict[str, list[Figures]] = {target.name: [] for target in targets}
    for turn in range(turns):
        for target in targets if turn % 2 == 0 else reversed(targets):
            runs[target.name].append(target.measure(case))
    return Compared(case, runs)
