"""Watches what other programs take of the cores, and has the engines compute with what they leave."""

from collections.abc import Callable, Collection

import structlog

from car_daemon.cores import CoresSource
from car_daemon.models.core_gauge import CoreGauge
from car_daemon.periodic import Periodic

log = structlog.get_logger()
_PERIOD_S = 0.25


class CoresWatch:
    """Looks four times a second; `taken` is told every change."""

    def __init__(
        self,
        read_cores: CoresSource,
        own_pids: Callable[[], Collection[int]],
        taken: Callable[[int], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._read_cores = read_cores
        self._own_pids = own_pids
        self._taken = taken
        self._clock = clock
        self._gauge = CoreGauge()
        self._readings = Periodic(_PERIOD_S, self.look)

    def start(self) -> None:
        """Watch from now on, in the running event loop."""
        self._readings.start()

    def stop(self) -> None:
        """Stop watching."""
        self._readings.stop()

    def look(self) -> None:
        """Take one reading and pass a change on; what cannot be read is not looked at again."""
        try:
            reading = self._read_cores(self._own_pids())
        except OSError as error:
            log.warning("cores.unreadable", error=type(error).__name__)
            self.stop()
            return
        if self._gauge.update(reading, self._clock()):
            log.debug("cores.taken", by_others=self._gauge.taken)
            self._taken(self._gauge.taken)
