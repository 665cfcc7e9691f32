"""Targets that take turns."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.comparison import Bystanders, Case, Measure, compare
from car_client.carctl.bench.figures import Figures, Spread
from car_client.carctl.bench.workload import Workload

CASE = Case(name="any", model="none", sequences=1, context_tokens=256, workload=Workload(requests=1))
AT_ONCE = Bystanders(quiet=1.0, patience_s=0.0)
NOTHING = Spread(0, 0, 0, 0)


class Scripted:
    """A target that says figures by heart, and writes down when it was its turn."""

    def __init__(self, name: str, rates: list[float], diary: list[str]) -> None:
        self.name = name
        self._rates = iter(rates)
        self._diary = diary

    @contextmanager
    def started(self, case: Case) -> Iterator[Measure]:
        assert case is CASE
        self._diary.append(f"{self.name} starts")
        yield self._measure
        self._diary.append(f"{self.name} stops")

    def _measure(self, workload: Workload) -> Figures:
        assert workload is CASE.workload
        self._diary.append(self.name)
        return Figures(1, next(self._rates), NOTHING, NOTHING, None, 0.0)


def test_every_other_turn_goes_backwards() -> None:
    diary: list[str] = []
    compare(CASE, [Scripted("a", [1, 1, 1], diary), Scripted("b", [1, 1, 1], diary)], turns=3, bystanders=AT_ONCE)
    assert diary[2:-2] == ["a", "b", "b", "a", "a", "b"]


def test_all_targets_start_before_the_first_turn_and_stop_after_the_last() -> None:
    diary: list[str] = []
    compare(CASE, [Scripted("a", [1], diary), Scripted("b", [1], diary)], turns=1, bystanders=AT_ONCE)
    assert diary == ["a starts", "b starts", "a", "b", "b stops", "a stops"]


def test_ratios_are_taken_turn_by_turn_and_then_their_median() -> None:
    # The machine is slow in the second turn: a ratio of medians would be 20 / 5.
    targets = [Scripted("a", [20, 2, 30], []), Scripted("b", [5, 1, 10], [])]
    found = compare(CASE, targets, turns=3, bystanders=AT_ONCE)
    assert found.ratio("a", "b") == 3.0
    assert found.tokens_per_s("a") == 20
    assert found.median_of("b", lambda run: run.tokens_per_s) == 5
