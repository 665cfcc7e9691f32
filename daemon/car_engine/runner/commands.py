"""The loop's inbox: commands of the daemon, and prompts that are about to come."""

import time
from collections.abc import Callable

from car_base.ipc.frames import Forget, Halt, Park, Resume, Run, RunTexts, SetThreads
from car_base.ipc.inbox import Inbox
from car_engine.batching.reuse.expected import Expected
from car_engine.images.ahead import EncodeAhead
from car_engine.images.encoder import Encoded
from car_engine.runner.idle_storing import Storage

Command = Run | RunTexts | EncodeAhead | Encoded | Forget | Park | Resume | Halt | SetThreads | Storage
# Requests that are sent together arrive within a millisecond; a first token takes some tens of them.
_TIMEOUT_S = 0.003


class Commands(Inbox[Command]):
    """Commands in order; prompts that come together start together where the engine is idle."""

    def __init__(self, timeout: float = _TIMEOUT_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._timeout = timeout
        self.clock = clock
        self._announced = 0  # Key of the newest request in preparation; written by the intake thread.
        self.expected = Expected()  # Prompts that were prepared and wait.
        self._absent = 0  # Key of the newest announced request that did not come in time: it is not awaited again.

    def follow(self, ended: int, patience: float) -> list[Command]:
        """Return all commands that came after so many requests ended, while others still run.

        A request that waits for a sequence gets the free one, and clients often send the next request at once: when it
        comes before the next decode, it need not wait for that. So wait for as many requests as ended, at most
        `patience` seconds.
        """
        commands = self.receive(wait=False)
        deadline = self.clock() + min(patience, self._timeout)
        while _runs(commands) < ended and (left := deadline - self.clock()) > 0:
            commands += self.receive(wait=True, timeout=left)
        return commands

    def announce(self, key: int) -> None:
        """Note that a prompt is being prepared; younger requests have higher keys."""
        self._announced = key

    def gather(self, room: int, idle: Callable[[], float | None] = lambda: None) -> list[Command]:
        """Block for a command, and below `room` requests shortly for announced ones; return all that came.

        The first chunk of one prompt delays all others, so reading them together takes less time. Each announced
        request is awaited once. Meanwhile `idle` is called, and again after the seconds that it returns.
        """
        commands: list[Command] = []
        while not commands:
            commands = self.receive(wait=True, timeout=idle())
        deadline = self.clock() + self._timeout
        while True:
            keys = [command.key for command in commands if isinstance(command, Run)]
            announced = self._announced
            if not 0 < len(keys) < room or announced <= max(*keys, self._absent):
                return commands
            left = deadline - self.clock()
            if left <= 0:
                self._absent = announced
                return commands
            commands += self.receive(wait=True, timeout=left)


def _runs(commands: list[Command]) -> int:
    return sum(isinstance(command, Run) for command in commands)
