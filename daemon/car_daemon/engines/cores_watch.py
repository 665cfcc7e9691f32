"""Cores that other programs use: measured from processor times, and reported to the engines that leave them."""

from collections.abc import Callable, Collection

from car_base.host.cores import CoresReading, CoresSource, foreign_cores
from car_base.host.event_log import log
from car_base.host.timers import Periodic

_PERIOD_S = 0.25
# A thread of ours would wait for a core that others use by half; a little more rules out chance.
_USES_ONE = 0.6
# Cores are free again after others left them alone for this long: two readings.
_CALM_S = 0.5


class CoreGauge:
    """Whole cores that other programs use: rises with the first reading that shows it, falls after a calm while."""

    def __init__(self) -> None:
        self.foreign = 0
        self._last: tuple[CoresReading, float] | None = None  # with its time
        self._fewer_since: float | None = None  # since when others use fewer cores than `foreign`

    def update(self, reading: CoresReading, now: float) -> bool:
        """Take a reading into account; return whether `foreign` changed."""
        last, self._last = self._last, (reading, now)
        if last is None or now <= last[1]:
            return False
        foreign = self.foreign
        cores = foreign_cores(last[0], reading, now - last[1])
        whole = int(cores + 1 - _USES_ONE)
        if cores >= foreign - _USES_ONE:
            self._fewer_since = None
            self.foreign = max(whole, foreign)
        else:
            since = now if self._fewer_since is None else self._fewer_since
            calm = now - since >= _CALM_S
            self._fewer_since = None if calm else since
            self.foreign = whole if calm else foreign
        return self.foreign != foreign


class CoresWatch:
    """Reads processor times four times a second and calls `changed` with every new number of foreign cores."""

    def __init__(
        self,
        read_cores: CoresSource,
        own_pids: Callable[[], Collection[int]],
        changed: Callable[[int], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._read_cores = read_cores
        self._own_pids = own_pids
        self._changed = changed
        self._clock = clock
        self._gauge = CoreGauge()
        self._readings = Periodic(_PERIOD_S, self.look)

    @property
    def foreign(self) -> int:
        """The cores that other programs use."""
        return self._gauge.foreign

    def start(self) -> None:
        """Watch from now on, in the running event loop."""
        self._readings.start()

    def stop(self) -> None:
        """Stop watching."""
        self._readings.stop()

    def look(self) -> None:
        """Read once and report a change; where processor times cannot be read, stop watching."""
        try:
            reading = self._read_cores(self._own_pids())
        except OSError as error:
            log.warning("cores.unreadable", error=type(error).__name__)
            self.stop()
            return
        if self._gauge.update(reading, self._clock()):
            log.debug("cores.taken", by_others=self._gauge.foreign)
            self._changed(self._gauge.foreign)
