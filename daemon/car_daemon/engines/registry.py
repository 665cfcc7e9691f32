"""The engines that are up, by number: the frames they are sent, and the division of the cores between them."""

from collections.abc import Collection

from msgspec import Struct

from car_base.host.cores import usable_cpus
from car_base.host.devices import CPU
from car_base.ipc.frames import Ready, SetThreads
from car_daemon.engines.link import Engine
from car_daemon.engines.thread_division import ThreadDivision


class EngineRegistry:
    """Sends frames by an engine's number; a frame for an engine that is gone is dropped."""

    def __init__(self, cores: int | None = None) -> None:
        self._links: dict[int, Engine] = {}
        self._threads = ThreadDivision(cores or len(usable_cpus()))
        self._divided: frozenset[int] | None = None  # the busy engines of the last division, None once it is outdated

    def __repr__(self) -> str:
        return f"<EngineRegistry of {len(self._links)} engines {sorted(self._links)}, {self._threads!r}>"

    def joined(self, number: int, link: Engine, ready: Ready) -> None:
        """Add an engine that became ready."""
        self._links[number] = link
        self._divided = None
        if ready.device == CPU and link.host is None:
            self._threads.add(number, ready.threads)

    def left(self, number: int) -> None:
        """Forget an engine."""
        self._links.pop(number, None)
        self._divided = None
        self._threads.remove(number)

    def send(self, number: int | None, message: Struct) -> None:
        """Send one frame; dropped where the engine is gone, because its loss is reported to its requests anyway."""
        if number is not None and (link := self._links.get(number)) is not None:
            link.send(message)

    def leave_cores(self, cores: int, busy: Collection[int]) -> None:
        """Leave this many cores to other programs, in the busy engines at once and in others once they are busy."""
        self._threads.foreign = cores
        self._divided = None
        self.divide_cores(busy)

    def divide_cores(self, busy: Collection[int]) -> None:
        """Divide the cores between the busy engines, where the set of them changed."""
        if (engines := frozenset(busy)) == self._divided:
            return
        self._divided = engines
        for number, threads in self._threads.divide(engines).items():
            self.send(number, SetThreads(threads))
