"""What the order of requests promises, by the scheduler itself over an engine of stated step times."""

from functools import cache
from random import Random

import pytest

from benchmarks.day import BUSY, CHEATS, POLITE, WEIGHTS, Day, jain
from benchmarks.steps_simulated import CASES, App, House
from car_daemon.scheduler.account import LAG


@cache
def simulated(name: str, seconds: float) -> House:
    """Return a case after this many simulated seconds."""
    apps, sequences = CASES[name]
    run = House(apps(), 1, sequences)
    run.run(seconds)
    return run


def app(name: str, case: str, seconds: float = 600.0) -> App:
    return next(each for each in simulated(case, seconds).apps if each.name == name)


def test_a_long_answer_ends_beside_endless_fresh_labels_of_its_own_user() -> None:
    assert len(app("long", "starving").ends) >= 2


def test_a_label_beside_endless_fresh_labels_is_at_most_a_long_answer_and_a_request_behind_its_equal_part() -> None:
    apps = simulated("churning", 600.0).apps
    part = sum(each.tokens for each in apps) / 7  # six fresh labels and the long one have work all the time
    a_request = (400 + 900) * 1.2
    assert app("long", "churning").tokens >= part - LAG - a_request


def test_every_long_stream_of_many_ends() -> None:
    assert min(len(each.ends) for each in simulated("equal", 600.0).apps) >= 20


@pytest.mark.parametrize(
    ("case", "name"), [("singles", "decides"), ("short", "short"), ("light", "light"), ("tiny", "tiny")]
)
def test_a_short_request_waits_for_less_than_a_second_beside_floods(case: str, name: str) -> None:
    assert max(app(name, case).leases) < 1.0


@pytest.mark.parametrize("case", ["fresh small", "split", "fresh long", "resends"])
def test_no_user_gains_by_labels_small_requests_or_sending_again(case: str) -> None:
    apps = simulated(case, 300.0).apps
    share = app("gamer", case, 300.0).tokens / sum(each.tokens for each in apps)
    assert share <= 0.25 * 1.05


@pytest.mark.parametrize("case", CASES)
def test_a_request_is_parked_at_most_once_in_the_mean(case: str) -> None:
    run = simulated(case, 120.0)
    assert run.parkings <= run.requests


class HealthyDay(Day):
    """A day on which no engine dies, so that no work is served twice."""

    def kill(self) -> None: ...


@pytest.mark.slow
def test_users_that_always_have_work_are_served_alike_and_polite_users_at_once() -> None:
    day = HealthyDay(Random(1))
    day.run(450.0)
    assert jain([day.service(uid) / WEIGHTS.get(uid, 1.0) for uid in (*BUSY, *CHEATS)]) >= 0.999
    waits = sorted(wait for uid in POLITE for wait in day.waits[uid, "latency_critical"])
    assert waits[len(waits) * 9 // 10] < 1.0
    assert not any(day.broken.values())
