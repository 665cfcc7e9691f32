"""Heartbeats: how long an engine may be silent, and how long a step may take."""

from car_daemon.engine.frames import Heartbeat, Ready
from car_daemon.models.vitals import VitalLimits, Vitals
from tests.daemon.links import ready_of

LIMITS = VitalLimits()


def ready(**inputs: float) -> Ready:
    return ready_of(kv_bytes=1, inputs=inputs)


def loaded(**inputs: float) -> Vitals:
    vitals = Vitals(LIMITS, 0.0)
    vitals.ready(ready(**inputs), 0.0)
    return vitals


def first_fault(vitals: Vitals, begin: float, end: float) -> tuple[float, str] | None:
    """Look twice a second; return when something was wrong, and what."""
    for tick in range(int(2 * begin) + 1, int(2 * end) + 1):
        if fault := vitals.look(tick / 2):
            return tick / 2, fault
    return None


def test_an_engine_that_sends_no_heartbeat_for_five_seconds_is_given_up() -> None:
    assert first_fault(loaded(), 0, 10) == (5.5, "no heartbeat")


def test_one_that_sends_a_heartbeat_every_second_is_not() -> None:
    vitals = loaded()
    for second in range(60):
        vitals.beat(Heartbeat(second, 0.0, {}), second)
        assert first_fault(vitals, second, second + 1) is None


def test_while_it_loads_it_may_be_silent_for_thirty() -> None:
    vitals = Vitals(LIMITS, 0.0)
    assert first_fault(vitals, 0, 30) is None
    assert first_fault(vitals, 30, 40) == (30.5, "no heartbeat")


def test_what_a_stalled_daemon_did_not_hear_does_not_count() -> None:
    vitals = loaded()
    assert first_fault(vitals, 0, 4) is None
    assert vitals.look(1000.0) is None
    assert first_fault(vitals, 1000, 1000.5) is None
    assert first_fault(vitals, 1000.5, 1010) == (1001.0, "no heartbeat")


def test_a_step_of_more_than_ten_seconds_does_not_end() -> None:
    vitals = loaded()
    vitals.beat(Heartbeat(1, 10_000.0, {}), 0.0)
    assert vitals.look(0.0) is None
    vitals.beat(Heartbeat(1, 10_001.0, {}), 0.0)
    assert vitals.look(0.0) == "a step does not end"


def test_where_steps_are_known_to_be_slow_they_may_take_twenty_times_as_long() -> None:
    vitals = loaded(tokens_per_s_1=2.0, tokens_per_s_4=4.0, free_bytes=1.0)
    vitals.beat(Heartbeat(1, 20_000.0, {}), 0.0)
    assert vitals.look(0.0) is None
    vitals.beat(Heartbeat(1, 20_001.0, {}), 0.0)
    assert vitals.look(0.0) == "a step does not end"


def test_a_step_that_was_seen_to_end_says_how_long_steps_may_take() -> None:
    vitals = loaded()
    for step, age in ((1, 3000.0), (2, 59_000.0)):
        vitals.beat(Heartbeat(step, age, {}), 0.0)
        assert vitals.look(0.0) is None
    vitals.beat(Heartbeat(2, 60_001.0, {}), 0.0)
    assert vitals.look(0.0) == "a step does not end"


def test_a_step_that_runs_does_not_excuse_itself() -> None:
    vitals = loaded()
    for age in range(1, 12):
        vitals.beat(Heartbeat(1, 1000.0 * age, {}), 0.0)
        assert (vitals.look(0.0) is None) == (age <= 10)
