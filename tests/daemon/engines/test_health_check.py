"""Heartbeats: the longest silence of an engine, and the longest step."""

import pytest

from car_base.ipc.frames import Heartbeat, Ready, RunningJob
from car_daemon.engines.life import Hang, HealthCheck, HealthLimits
from tests.daemon.links import ready_of

LIMITS = HealthLimits()


def ready(**inputs: float) -> Ready:
    return ready_of(kv_bytes=1, inputs=inputs)


def loaded(**inputs: float) -> HealthCheck:
    health = HealthCheck(LIMITS, 0.0)
    health.ready(ready(**inputs), 0.0)
    return health


def first_fault(health: HealthCheck, begin: float, end: float) -> tuple[float, str] | None:
    """Look twice a second; return when something was wrong, and what."""
    for tick in range(int(2 * begin) + 1, int(2 * end) + 1):
        if fault := health.look(tick / 2):
            return tick / 2, fault.why
    return None


def test_an_engine_that_sends_no_heartbeat_for_five_seconds_is_given_up() -> None:
    assert first_fault(loaded(), 0, 10) == (5.5, "no heartbeat for 5.5 s, the limit is 5 s")


def test_an_engine_that_sends_a_heartbeat_every_second_is_healthy() -> None:
    health = loaded()
    for second in range(60):
        health.beat(Heartbeat(second, 0.0, {}), second)
        assert first_fault(health, second, second + 1) is None


def test_a_loading_engine_may_be_silent_for_thirty_seconds() -> None:
    health = HealthCheck(LIMITS, 0.0)
    assert first_fault(health, 0, 30) is None
    assert first_fault(health, 30, 40) == (30.5, "no heartbeat for 30.5 s, the limit is 30 s")


@pytest.mark.parametrize(("share", "given_up_at"), [(0.0, 5.5), (0.5, 10.5), (0.75, 20.5), (1.0, 30.5)])
def test_silence_in_which_an_engine_waits_for_a_core_does_not_count_up_to_the_silence_of_a_load(
    share: float, given_up_at: float
) -> None:
    health, now = loaded(), 0.0
    while health.look(now, share * now) is None:
        now += 0.5
    assert now == given_up_at


def test_silence_while_the_daemon_itself_was_stalled_does_not_count() -> None:
    health = loaded()
    assert first_fault(health, 0, 4) is None
    assert health.look(1000.0) is None
    assert first_fault(health, 1000, 1000.5) is None
    assert first_fault(health, 1000.5, 1010) == (1001.0, "no heartbeat for 5.5 s, the limit is 5 s")


def test_an_engine_whose_frames_the_daemon_is_still_reading_is_alive() -> None:
    health = loaded()
    for second in range(60):
        health.alive(second)
        assert first_fault(health, second, second + 1) is None


def test_a_step_of_more_than_ten_seconds_does_not_end() -> None:
    health = loaded()
    health.beat(Heartbeat(1, 10_000.0, {}), 0.0)
    assert health.look(0.0) is None
    health.beat(Heartbeat(1, 10_001.0, {}), 0.0)
    assert health.look(0.0) == Hang("step", "a step has lasted 10.0 s, the limit is 10 s")


def test_where_steps_are_known_to_be_slow_they_may_take_twenty_times_as_long() -> None:
    health = loaded(tokens_per_s_1=2.0, tokens_per_s_4=4.0, free_bytes=1.0)
    health.beat(Heartbeat(1, 20_000.0, {}), 0.0)
    assert health.look(0.0) is None
    health.beat(Heartbeat(1, 20_001.0, {}), 0.0)
    assert health.look(0.0) == Hang("step", "a step has lasted 20.0 s, the limit is 20 s")


def test_a_step_that_was_seen_to_end_says_how_long_steps_may_take() -> None:
    health = loaded()
    for step, age in ((1, 3000.0), (2, 59_000.0)):
        health.beat(Heartbeat(step, age, {}), 0.0)
        assert health.look(0.0) is None
    health.beat(Heartbeat(2, 60_001.0, {}), 0.0)
    assert health.look(0.0) == Hang("step", "a step has lasted 60.0 s, the limit is 60 s")


def test_a_step_that_runs_does_not_excuse_itself() -> None:
    health = loaded()
    for age in range(1, 12):
        health.beat(Heartbeat(1, 1000.0 * age, {}), 0.0)
        assert (health.look(0.0) is None) == (age <= 10)


def test_a_job_may_take_five_seconds_for_every_mib_of_its_input() -> None:
    health = loaded()
    for size, limit_s in ((0, 5), (1 << 20, 5), (3 << 20, 15)):
        health.beat(Heartbeat(1, 0.0, {}, RunningJob(1000.0 * limit_s, size, 7)), 0.0)
        assert health.look(0.0) is None
        health.beat(Heartbeat(1, 0.0, {}, RunningJob(1000.0 * limit_s + 100, size, 7)), 0.0)
        why = f"preparing a request has lasted {limit_s}.1 s, the limit is {limit_s} s"
        assert health.look(0.0) == Hang("job", why, 7)


def test_the_request_being_prepared_is_suspected_of_a_silence() -> None:
    health = loaded()
    health.beat(Heartbeat(1, 0.0, {}, RunningJob(100.0, 100, 7)), 0.0)
    for tick in range(1, 11):
        assert health.look(tick / 2) is None
    hang = health.look(5.5)
    assert hang is not None
    assert hang.key == 7


def hanging_at(health: HealthCheck) -> int | None:
    """Look twice a second at a silent engine; return the request at which it is found to hang."""
    (hang,) = [found for tick in range(1, 12) if (found := health.look(tick / 2))]
    return hang.key


def test_an_engine_that_is_silent_since_a_job_began_hangs_at_its_request() -> None:
    health = loaded()
    health.beat(Heartbeat(0, 0.0, {}), 0.0)
    health.begun(RunningJob(0.0, 10, 7))
    assert hanging_at(health) == 7


def test_a_job_that_began_before_a_heartbeat_without_it_is_done() -> None:
    health = loaded()
    health.begun(RunningJob(0.0, 10, 7))
    health.beat(Heartbeat(0, 0.0, {}), 0.0)
    assert hanging_at(health) is None
