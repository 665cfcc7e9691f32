"""Waiting times from the measured service rate."""

import pytest

from car_daemon.scheduler.eta import ServiceRate


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
