"""Costs that were measured while other programs had the cores: they are measured again in the first idle minute."""

from collections.abc import Callable, Iterable

from car_base.host.event_log import log
from car_base.host.timers import Periodic
from car_base.ipc.types import COST_CORES
from car_daemon.models.entry import ModelEntry

_PERIOD_S = 1.0
# A measurement takes a second, and the load of a large model some more, so it ends within the idle minute.
QUIET_S = 30.0


class QuietTime:
    """The time for which nothing has been going on: half a minute is enough, then twice as long each time.

    So a machine on which programs come and go has few loads for it.
    """

    def __init__(self) -> None:
        self._since: float | None = None  # in seconds of the caller's clock
        self._enough_s = QUIET_S

    def __repr__(self) -> str:
        return f"<QuietTime since={self._since}>"

    def update(self, now: float, *, quiet: bool) -> bool:
        """Take a reading into account; return whether it has been quiet for long enough."""
        if not quiet:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= self._enough_s

    def used(self) -> None:
        """Begin anew, for twice as long."""
        self._since, self._enough_s = None, 2 * self._enough_s


def busy_threads(entry: ModelEntry) -> int:
    """Return the most threads of a model's engines that declared their capacity by costs of busy cores; 0 for none."""
    ready = [each.ready for each in entry.replicas if each.ready is not None and not each.placed]
    return max((each.threads for each in ready if each.policy == "measured" and COST_CORES in each.inputs), default=0)


class CurveRenewal:
    """Loads such a model again, one a second, once its requests and other programs have left the cores alone.

    `busy` says whether a model has work, `leaves` whether other programs leave a core to so many threads.
    """

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        reload: Callable[[ModelEntry], bool],
        *,
        busy: Callable[[str], bool],
        leaves: Callable[[int], bool],
        clock: Callable[[], float],
    ) -> None:
        self._entries = entries
        self._reload = reload
        self._busy = busy
        self._leaves = leaves
        self._clock = clock
        self._quiet = QuietTime()
        self._looks = Periodic(_PERIOD_S, self.look)

    def start(self) -> None:
        """Look once a second from now on, in the running event loop."""
        self._looks.start()

    def stop(self) -> None:
        """Look no more."""
        self._looks.stop()

    def look(self) -> None:
        """Load the first such model again if it has been quiet long enough."""
        entries = list(self._entries)
        found = next((each for each in entries if busy_threads(each)), None)
        idle = all(each.state not in ("loading", "draining") and not self._busy(each.name) for each in entries)
        quiet = found is not None and idle and self._leaves(busy_threads(found))
        if self._quiet.update(self._clock(), quiet=quiet) and found is not None and self._reload(found):
            self._quiet.used()
            log.info("curve.renewed", model=found.name)
