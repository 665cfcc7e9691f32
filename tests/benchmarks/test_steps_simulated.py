"""The step-level simulation of apps at one engine."""

import pytest

from benchmarks.steps_simulated import CASES, House, house


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
