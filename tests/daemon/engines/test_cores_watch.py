"""Cores that other programs take: the gauge that measures them, and the watch that reports changes."""

from collections.abc import Collection

from car_base.host.cores import CoresReading
from car_daemon.engines.registry import CoreGauge, CoresWatch

OWN = 1


class Machine:
    """Readings four times a second, of others and of ourselves by the cores that each takes."""

    def __init__(self) -> None:
        self.gauge = CoreGauge()
        self.now = self.all = self.own = 0.0
        self.gauge.update(CoresReading(0.0, {OWN: 0.0}), 0.0)

    def passes(self, seconds: float, others: float, own: float = 2.0) -> list[int]:
        """Let time pass; return the gauge's number at each reading."""
        numbers = []
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.own += own / 4
            self.all += (own + others) / 4
            self.gauge.update(CoresReading(self.all, {OWN: self.own}), self.now)
            numbers.append(self.gauge.foreign)
        return numbers


def test_our_own_work_takes_no_core_from_us() -> None:
    assert Machine().passes(2, others=0.1, own=8.0) == [0] * 8


def test_a_busy_program_takes_a_core_with_the_first_reading() -> None:
    assert Machine().passes(0.25, others=0.7) == [1]


def test_a_program_that_works_now_and_then_takes_none() -> None:
    assert Machine().passes(2, others=0.5) == [0] * 8


def test_cores_are_free_again_after_half_a_calm_second_and_not_before() -> None:
    machine = Machine()
    machine.passes(1, others=3.0)
    assert machine.passes(1, others=0.0) == [3, 3, 0, 0]


def test_a_short_pause_of_a_busy_program_frees_nothing() -> None:
    machine = Machine()
    machine.passes(1, others=1.0)
    for _ in range(5):
        assert set(machine.passes(0.5, others=0.0) + machine.passes(0.25, others=1.0)) == {1}


def test_what_still_works_after_others_ended_is_counted() -> None:
    machine = Machine()
    machine.passes(1, others=3.0)
    assert machine.passes(2, others=1.2)[-1] == 1


def test_an_engine_that_is_new_or_gone_is_no_other_program() -> None:
    gauge = CoreGauge()
    gauge.update(CoresReading(10.0, {OWN: 5.0, 2: 5.0}), 0.0)
    assert not gauge.update(CoresReading(12.0, {OWN: 6.0, 3: 1.0}), 1.0)
    assert gauge.foreign == 0


def test_readings_of_one_moment_say_nothing() -> None:
    gauge = CoreGauge()
    gauge.update(CoresReading(0.0, {}), 1.0)
    assert not gauge.update(CoresReading(100.0, {}), 1.0)


class Watched:
    """A watch whose readings and clock are given."""

    def __init__(self) -> None:
        self.readings: list[CoresReading | OSError] = []
        self.pids: list[list[int]] = []
        self.changes: list[int] = []
        self.now = 0.0
        self.watch = CoresWatch(self._read, lambda: [7, 8], self.changes.append, clock=lambda: self.now)

    def sees(self, reading: CoresReading | OSError) -> None:
        """Take a reading a second after the last one."""
        self.now += 1.0
        self.readings.append(reading)
        self.watch.look()

    def _read(self, pids: Collection[int]) -> CoresReading:
        self.pids.append(list(pids))
        reading = self.readings.pop(0)
        if isinstance(reading, OSError):
            raise reading
        return reading


def test_every_change_is_reported_once() -> None:
    watched = Watched()
    for worked in (0.0, 1.0, 2.0, 2.0, 2.0, 2.0):
        watched.sees(CoresReading(worked, {}))
    assert watched.changes == [1, 0]
    assert watched.pids[0] == [7, 8]


async def test_a_machine_that_does_not_tell_is_asked_once() -> None:
    watched = Watched()
    watched.readings.append(PermissionError("no /proc"))
    watched.watch.start()
    watched.watch.look()
    assert not watched.watch._readings.running
    assert watched.changes == []
