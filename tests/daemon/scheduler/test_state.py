"""Counters that add up, and waiting times from the measured service rate."""

import pytest

from car_daemon.scheduler.state import OutcomeTotals, ServiceRate
from car_protocol.errors import REASONS


def test_nothing_was_counted_at_first() -> None:
    totals = OutcomeTotals()
    assert (totals.received, totals.completed, totals.failed, totals.cancelled, totals.rejected) == (0, 0, 0, 0, 0)
    assert totals.in_flight == 0


def test_what_has_no_answer_yet_is_in_flight() -> None:
    totals = OutcomeTotals()
    totals.received = 5
    totals.completed = 1
    totals.count_error("cancelled")
    totals.count_error("draining")
    assert totals.in_flight == 2


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_error_of_the_table_counts_once(reason: str) -> None:
    totals = OutcomeTotals()
    totals.received = 1
    totals.count_error(reason)
    assert totals.in_flight == 0
    failed = {"deadline_exceeded", "engine_lost", "slow_reader", "internal_error"}
    expected = (reason in failed, reason == "cancelled", reason not in failed | {"cancelled"})
    assert (totals.failed, totals.cancelled, totals.rejected) == expected


def test_before_a_lease_ended_no_wait_is_known() -> None:
    assert ServiceRate().wait_ms(0, 1) is None


def test_a_wait_grows_with_the_position_and_shrinks_with_capacity() -> None:
    rate = ServiceRate()
    rate.observe(2.0)
    assert (rate.wait_ms(0, 1), rate.wait_ms(3, 1), rate.wait_ms(3, 4)) == (2000, 8000, 2000)


def test_the_mean_follows_what_leases_take() -> None:
    rate = ServiceRate()
    rate.observe(2.0)
    rate.observe(4.0)
    assert rate.wait_ms(0, 1) == 2400
