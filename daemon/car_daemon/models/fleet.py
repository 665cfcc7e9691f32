"""The engines that are up, by number: what they are sent, and their shares of the cores."""

from collections.abc import Collection

from msgspec import Struct

from car_daemon.cores import usable_cpus
from car_daemon.devices import CPU
from car_daemon.engine.frames import Ready, Share
from car_daemon.models.link import Engine
from car_daemon.models.thread_shares import ThreadShares


class Fleet:
    """Sends frames by an engine's number; one that is gone gets none."""

    def __init__(self, cores: int | None = None) -> None:
        # Mutable state: the links, and the threads of those that compute on the cores.
        self._links: dict[int, Engine] = {}
        self._threads = ThreadShares(cores or len(usable_cpus()))

    def joined(self, number: int, link: Engine, ready: Ready) -> None:
        """Take an engine that became ready."""
        self._links[number] = link
        if ready.device == CPU:
            self._threads.joined(number, ready.threads)

    def left(self, number: int) -> None:
        """Forget an engine."""
        self._links.pop(number, None)
        self._threads.left(number)

    def send(self, number: int | None, message: Struct) -> None:
        """Send one frame; nothing where the engine is gone, which its requests hear of otherwise."""
        if number is not None and (link := self._links.get(number)) is not None:
            link.send(message)

    def cores_taken(self, cores: int, busy: Collection[int]) -> None:
        """Have those engines that are busy, and whoever is from now on, leave so many cores to other programs."""
        self._threads.taken = cores
        self.divide_cores(busy)

    def divide_cores(self, busy: Collection[int]) -> None:
        """Have those engines that are busy share the cores."""
        for number, threads in self._threads.divide(busy).items():
            self.send(number, Share(threads))
