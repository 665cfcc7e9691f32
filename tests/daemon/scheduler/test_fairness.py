"""Tokens served, fading with time; and how long leases take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.scheduler.fairness import Fairness
from car_daemon.scheduler.rate import ServiceRate

ONE, OTHER = (0, "one"), (0, "other")


def test_a_client_that_was_never_served_has_nothing() -> None:
    assert Fairness().served(ONE, 0.0) == 0.0


def test_tokens_fade_by_half_in_a_minute() -> None:
    fairness = Fairness()
    fairness.charge(ONE, 100.0, 0.0)
    assert fairness.served(ONE, 60.0) == pytest.approx(50.0)
    assert fairness.served(ONE, 120.0) == pytest.approx(25.0)


def test_tokens_add_up_as_of_now() -> None:
    fairness = Fairness()
    fairness.charge(ONE, 100.0, 0.0)
    fairness.charge(ONE, 10.0, 60.0)
    assert fairness.served(ONE, 60.0) == pytest.approx(60.0)
    assert fairness.served(OTHER, 60.0) == 0.0


def test_what_was_counted_in_advance_can_be_taken_back_but_not_more() -> None:
    fairness = Fairness()
    fairness.charge(ONE, 64.0, 0.0)
    fairness.charge(ONE, -60.0, 0.0)
    assert fairness.served(ONE, 0.0) == pytest.approx(4.0)
    fairness.charge(ONE, -60.0, 0.0)
    assert fairness.served(ONE, 0.0) == 0.0


def test_clients_whose_tokens_have_faded_are_forgotten() -> None:
    fairness = Fairness()
    fairness.charge(ONE, 1.0, 0.0)
    fairness.charge(OTHER, 1000.0, 0.0)
    fairness.forget(90.0)
    assert list(fairness._served) == [OTHER]
    assert fairness.served(OTHER, 90.0) > 0


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0, 60)), max_size=10))
def test_nobody_was_ever_served_less_than_nothing(charges: list[tuple[float, float]]) -> None:
    fairness, now = Fairness(), 0.0
    for tokens, passed in charges:
        now += passed
        fairness.charge(ONE, tokens, now)
        assert fairness.served(ONE, now) >= 0.0


def test_before_a_lease_ended_no_wait_is_known() -> None:
    assert ServiceRate().wait(0, 1) is None


def test_a_wait_grows_with_the_position_and_shrinks_with_capacity() -> None:
    rate = ServiceRate()
    rate.observe(2.0)
    assert (rate.wait(0, 1), rate.wait(3, 1), rate.wait(3, 4)) == (2.0, 8.0, 2.0)


def test_the_mean_follows_what_leases_take() -> None:
    rate = ServiceRate()
    rate.observe(2.0)
    rate.observe(4.0)
    assert rate.wait(0, 1) == pytest.approx(2.4)
