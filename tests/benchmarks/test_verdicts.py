"""The lines of the table of card beside llama-server."""

import pytest

from benchmarks.comparison import Case, Compared
from benchmarks.verdict_parts import Line, at_most, ratio_at_most
from benchmarks.verdicts import Load, Part, chosen_of, judged, summary
from car_client.carctl.bench.figures import Figures, Spread
from car_client.carctl.bench.workload import Workload

CASE = Case(name="8 clients", model="none", sequences=8, context_tokens=256, workload=Workload(requests=1))


def run(tokens_per_s: float, first_ms: float = 100.0, gap_ms: float = 50.0) -> Figures:
    first, gaps = (Spread(value, value, value, value) for value in (first_ms, gap_ms))
    return Figures(1, tokens_per_s, first, gaps, None, 0.0)


def lines(load: Load, *servers: str, **runs: list[Figures]) -> dict[str, Line]:
    """Return the lines by what follows the case's name; runs by target, of which `bare` is the bare loop."""
    named = {"bare loop" if name == "bare" else name: found for name, found in runs.items()}
    compared = Compared(CASE, named, {name: [0.0] for name in named})
    return {line.name.removeprefix("8 clients: "): line for line in judged(load, compared, servers)}


@pytest.mark.parametrize(("rate", "met"), [(97.0, True), (96.4, False)])
def test_a_throughput_is_judged_by_its_bar_in_hundredths(rate: float, met: bool) -> None:
    found = lines(Load(CASE, 0.97), "split", card=[run(rate)], split=[run(100.0)])
    assert found["tokens/s"].met is met
    assert found["tokens/s"].row()[-1] == ("met" if met else "MISSED")


def test_card_is_judged_beside_the_better_mode_of_the_server() -> None:
    found = lines(Load(CASE, 1.0), "split", "unified", card=[run(90.0)], split=[run(80.0)], unified=[run(100.0)])
    assert found["tokens/s"].beside == "100 (unified)"
    assert found["tokens/s"].met is False


def test_ratios_are_medians_of_the_turns() -> None:
    card, other = [run(10.0), run(200.0), run(110.0)], [run(100.0), run(100.0), run(100.0)]
    assert lines(Load(CASE, 1.0), "split", card=card, split=other)["tokens/s"].bar == "1.10, at least 1.00"


def test_latencies_are_judged_beside_those_of_the_server() -> None:
    found = lines(Load(CASE, 1.0), "split", card=[run(100.0, 90.0, 60.0)], split=[run(100.0, 100.0, 50.0)])
    assert (found["first token p50, ms"].met, found["between tokens p99, ms"].met) == (True, False)


def test_a_case_with_a_bar_of_its_own_is_judged_without_a_server() -> None:
    found = lines(Load(CASE, 1.0, of_bare=0.96, most_gap_ms=500.0), card=[run(95.0, gap_ms=501.0)], bare=[run(100.0)])
    assert found["of the bare loop"].met is False
    assert found["between tokens p99 by its own bar, ms"].met is False
    assert found["tokens/s"].met is None
    assert found["tokens/s"].row()[-1] == "-"


def test_a_server_without_a_token_in_a_turn_is_not_judged() -> None:
    found = lines(Load(CASE, 1.0), "split", card=[run(10.0), run(10.0)], split=[run(10.0), run(0.0)])
    assert found["tokens/s"].met is None
    assert found["tokens/s"].beside == "no token in a turn (split)"


def test_a_server_without_a_whole_answer_has_no_latency_to_be_judged_by() -> None:
    found = lines(Load(CASE, 1.0), "split", card=[run(10.0)], split=[run(1.0, 0.0, 0.0)])
    assert (found["tokens/s"].met, found["first token p50, ms"].met) == (True, None)


def test_a_figure_is_judged_by_its_own_bar() -> None:
    assert [at_most("percent", own, 10.0).met for own in (10.0, 10.1)] == [True, False]


def test_a_ratio_at_most_is_the_median_of_the_turns() -> None:
    line = ratio_at_most("seconds", [10.0, 9.0, 30.0], [10.0, 10.0, 10.0], 0.92)
    assert (line.card, line.beside, line.bar, line.met) == ("10.0", "10.0", "1.00, at most 0.92", False)


SHORT, LONG = Part("8 clients", lambda: iter(())), Part("prefixes", lambda: iter(()), full=True)


def test_long_parts_are_measured_on_demand_alone() -> None:
    assert chosen_of([SHORT, LONG], "", full=False) == [SHORT]
    assert chosen_of([SHORT, LONG], "", full=True) == [SHORT, LONG]
    assert chosen_of([SHORT, LONG], "prefix", full=False) == [LONG]


def test_the_end_of_the_table_counts_the_verdicts_and_names_what_was_not_measured() -> None:
    lines = [at_most("percent", own, 10.0) for own in (9.0, 11.0, 8.0)]
    assert summary(lines, [LONG], 2) == (
        "2 met, 1 missed, 0 without a verdict; medians of 2 turns\nnot measured (--full): prefixes"
    )
    assert "not measured" not in summary(lines, [], 2)
