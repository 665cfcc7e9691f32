"""Decisions between two lives of an engine."""

import signal

import pytest

from car_daemon.engines.restart_policy import CircuitLimits, RestartLimits, RestartPolicy


def policy_of(deaths: int = 10) -> RestartPolicy:
    return RestartPolicy(RestartLimits(circuit=CircuitLimits(deaths=deaths), first_backoff_s=0.5))


def test_the_backoff_doubles_with_every_death_and_begins_anew_after_a_load() -> None:
    policy = policy_of()
    assert [policy.died(now) for now in (0.0, 1.0, 2.0)] == [0.5, 1.0, 2.0]
    policy.ready()
    assert policy.died(3.0) == 0.5


def test_after_too_many_deaths_the_reason_is_returned_and_one_more_try_is_allowed() -> None:
    policy = policy_of(deaths=2)
    assert [policy.died(0.0), policy.died(0.0)] == [0.5, "the engine died 2 times before the model was loaded"]
    policy.try_again()
    policy.ready()
    assert policy.died(1.0) == 0.5


def test_a_crash_turns_packing_off_and_the_next_crash_on_again() -> None:
    policy = policy_of()
    assert [policy.died_loading(-signal.SIGKILL, None), policy.packed] == [False, True]
    assert [policy.died_loading(-signal.SIGILL, None), policy.packed] == [False, False]
    assert [policy.died_loading(-signal.SIGILL, None), policy.packed] == [True, True]


@pytest.mark.parametrize("second", [signal.SIGILL, signal.SIGSEGV])
def test_a_load_that_crashes_packed_and_unpacked_is_not_worth_a_third(second: signal.Signals) -> None:
    policy = policy_of()
    assert not policy.died_loading(-signal.SIGILL, None)
    assert policy.died_loading(-second, None)


def test_a_load_that_dies_twice_alike_is_not_worth_another() -> None:
    policy = policy_of()
    assert [policy.died_loading(-signal.SIGKILL, cause) for cause in ("job", "step", "job")] == [False, False, True]


def test_loads_that_another_program_killed_do_not_count_as_alike() -> None:
    policy = policy_of()
    assert [policy.died_loading(-signal.SIGKILL, None) for _ in range(3)] == [False] * 3


def test_a_load_between_two_equal_deaths_makes_the_second_the_first() -> None:
    policy = policy_of()
    assert not policy.died_loading(1, "a defect")
    policy.ready()
    assert not policy.died_loading(1, "a defect")
