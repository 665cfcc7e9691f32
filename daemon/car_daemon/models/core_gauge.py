"""How many cores other programs take, from readings of what all and our own processes worked."""

from car_daemon.cores import CoresReading

# Half a core more is another core that a thread of ours would have to wait for, and some more than chance.
_TAKES_ONE = 0.6
# Cores are free again when others left them alone for so many seconds: two readings.
_CALM_S = 0.5


class CoreGauge:
    """Rises with the first reading that shows it, falls after a calm while."""

    def __init__(self) -> None:
        # Mutable state: whole cores that others take, the last reading and its moment, and since when they take fewer.
        self.taken = 0
        self._last: tuple[CoresReading, float] | None = None
        self._fewer_since: float | None = None

    def update(self, reading: CoresReading, now: float) -> bool:
        """Take a reading into account; return whether `taken` changed."""
        last, self._last = self._last, (reading, now)
        if last is None or now <= last[1]:
            return False
        others = _others(last[0], reading) / (now - last[1])
        before = self.taken
        self.taken = self._judged(others, now)
        return self.taken != before

    def _judged(self, others: float, now: float) -> int:
        wanted = int(others + 1 - _TAKES_ONE)
        if others >= self.taken - _TAKES_ONE:
            self._fewer_since = None
            return max(wanted, self.taken)
        if self._fewer_since is None:
            self._fewer_since = now
        if now - self._fewer_since < _CALM_S:
            return self.taken
        self._fewer_since = None
        return wanted


def _others(before: CoresReading, after: CoresReading) -> float:
    """Return the seconds that other programs worked between two readings."""
    own = sum(max(0.0, seconds - before.own.get(pid, 0.0)) for pid, seconds in after.own.items())
    return max(0.0, after.all - before.all - own)
