"""What the watch of the cores tells the engines."""

from collections.abc import Collection

from car_daemon.cores import CoresReading
from car_daemon.models.cores_watch import CoresWatch


class Watched:
    """A watch whose readings and clock are given."""

    def __init__(self) -> None:
        self.readings: list[CoresReading | OSError] = []
        self.asked: list[list[int]] = []
        self.told: list[int] = []
        self.now = 0.0
        self.watch = CoresWatch(self._read, lambda: [7, 8], self.told.append, clock=lambda: self.now)

    def sees(self, reading: CoresReading | OSError) -> None:
        """Take a reading a second after the last one."""
        self.now += 1.0
        self.readings.append(reading)
        self.watch.look()

    def _read(self, pids: Collection[int]) -> CoresReading:
        self.asked.append(list(pids))
        reading = self.readings.pop(0)
        if isinstance(reading, OSError):
            raise reading
        return reading


def test_every_change_is_told_once() -> None:
    watched = Watched()
    for worked in (0.0, 1.0, 2.0, 2.0, 2.0, 2.0):
        watched.sees(CoresReading(worked, {}))
    assert watched.told == [1, 0]
    assert watched.asked[0] == [7, 8]


async def test_a_machine_that_does_not_tell_is_asked_once() -> None:
    watched = Watched()
    watched.readings.append(PermissionError("no /proc"))
    watched.watch.start()
    watched.watch.look()
    timer = watched.watch._readings._timer
    assert timer is not None
    assert timer.cancelled()
    assert watched.told == []
