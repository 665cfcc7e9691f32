"""The step-level simulation of apps at one engine."""

import pytest

from benchmarks.steps_simulated import CASES, TARGET_S, House, house
from car_client.carctl.bench.figures import spread


@pytest.mark.parametrize("name", CASES)
def test_every_app_is_answered_and_no_sequence_is_leased_twice(name: str) -> None:
    apps, sequences = CASES[name]
    run = House(apps(), 1, sequences)
    run.run(20.0)
    assert all(app.first for app in run.apps if app.starts == 0.0 and app.uid < 10)
    assert run.scheduler.gate.in_use <= sequences
    assert run.scheduler.totals.in_flight == len(run.scheduler.requests)


def test_the_same_seed_gives_the_same_figures() -> None:
    one, other = House(house(), 3), House(house(), 3)
    for each in (one, other):
        each.run(30.0)
    assert [app.ends for app in one.apps] == [app.ends for app in other.apps]


def first_answers(name: str) -> list[float]:
    """Return the times of the first 200 decisions of a case, in simulated seconds."""
    apps, sequences = CASES[name]
    run = House(apps(), 1, sequences)
    run.run(1200.0)
    decides = run.apps[-1]
    assert len(decides.first) >= 200
    return decides.first[:200]


@pytest.mark.parametrize("others", [name for name in CASES if name.startswith("decides beside")])
def test_p95_of_decisions_beside_others_is_at_most_three_times_that_alone_and_a_step(others: str) -> None:
    alone = spread(first_answers("decides alone")).p95
    assert alone < spread(first_answers(others)).p95 <= 3 * alone + TARGET_S
