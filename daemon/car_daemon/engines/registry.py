"""The engines that are up, and the cores that they divide and leave to other programs."""

from collections.abc import Callable, Collection

from msgspec import Struct

from car_base.host.cores import CoresReading, CoresSource, foreign_cores, usable_cpus
from car_base.host.devices import CPU
from car_base.host.event_log import log
from car_base.host.timers import Periodic
from car_base.ipc.frames import Ready, SetThreads, SpareMemory
from car_daemon.engines.link import Engine

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
        """Read once and report a change; if processor times cannot be read, stop watching."""
        try:
            reading = self._read_cores(self._own_pids())
        except OSError as error:
            log.warning("cores.unreadable", error=type(error).__name__)
            self.stop()
            return
        if self._gauge.update(reading, self._clock()):
            log.debug("cores.taken", by_others=self._gauge.foreign)
            self._changed(self._gauge.foreign)


class ThreadDivision:
    """An engine alone has all threads that it requested; engines that are busy together divide them.

    Together they have at most the cores that other programs leave: llama.cpp's threads wait for each other after every
    operation, so one thread without a core of its own delays all threads.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._requested: dict[int, int] = {}  # the threads of each engine when it is alone
        self._current: dict[int, int] = {}  # the threads that each engine computes with
        self.foreign = 0  # cores that other programs use

    def __repr__(self) -> str:
        return f"<ThreadDivision of {self._cores} cores, {self.foreign} foreign: {self._current}>"

    def add(self, engine: int, threads: int) -> None:
        """Count an engine that computes on the cores with this many threads."""
        self._requested[engine] = self._current[engine] = threads

    def remove(self, engine: int) -> None:
        """Forget an engine."""
        self._requested.pop(engine, None)
        self._current.pop(engine, None)

    def divide(self, busy: Collection[int]) -> dict[int, int]:
        """Return the new threads of the engines whose number changes; idle engines keep theirs."""
        sharing = sorted(engine for engine in busy if engine in self._requested)
        changes = {}
        for place, engine in enumerate(sharing):
            # The requested threads may be more than the cores; of nearly equal parts the first get the remainder.
            most = self._requested[engine]
            if self.foreign:
                most = min(most, max(1, self._cores - self.foreign))
            threads = max(1, most // len(sharing) + (place < most % len(sharing)))
            if threads != self._current[engine]:
                changes[engine] = threads
        self._current |= changes
        return changes


class EngineRegistry:
    """Sends frames by an engine's number; a frame for an engine that is gone is dropped."""

    def __init__(self, cores: int | None = None) -> None:
        self._links: dict[int, Engine] = {}
        self._threads = ThreadDivision(cores or len(usable_cpus()))
        self._sparing: set[int] = set()  # the engines that spare memory
        self._divided: frozenset[int] | None = None  # the busy engines of the last division, None once it is outdated

    def __repr__(self) -> str:
        return f"<EngineRegistry of {len(self._links)} engines {sorted(self._links)}, {self._threads!r}>"

    def __contains__(self, number: int) -> bool:
        return number in self._links

    def joined(self, number: int, link: Engine, ready: Ready) -> None:
        """Add an engine that became ready."""
        self._links[number] = link
        self._divided = None
        if ready.device == CPU and link.host is None:
            self._threads.add(number, ready.threads)

    def left(self, number: int) -> None:
        """Forget an engine."""
        self._links.pop(number, None)
        self._sparing.discard(number)
        self._divided = None
        self._threads.remove(number)

    def send(self, number: int | None, message: Struct) -> None:
        """Send one frame; dropped if the engine is gone, because its loss is reported to its requests anyway."""
        if number is not None and (link := self._links.get(number)) is not None:
            link.send(message)

    def spare_memory(self, short: Collection[str | None]) -> None:
        """Have the engines of these machines, None for this one, give back what they can compute again; no others."""
        sparing = {number for number, link in self._links.items() if link.host in short}
        for number in sorted(sparing ^ self._sparing):
            self.send(number, SpareMemory(number in sparing))
        self._sparing = sparing

    def leave_cores(self, cores: int, busy: Collection[int]) -> None:
        """Leave this many cores to other programs, in the busy engines at once and in others once they are busy."""
        self._threads.foreign = cores
        self._divided = None
        self.divide_cores(busy)

    def divide_cores(self, busy: Collection[int]) -> None:
        """Divide the cores between the busy engines, if the set of busy engines changed."""
        if (engines := frozenset(busy)) == self._divided:
            return
        self._divided = engines
        for number, threads in self._threads.divide(engines).items():
            self.send(number, SetThreads(threads))
