"""What the loop is told to do, and which prompts are about to come."""

import time
from collections.abc import Callable

from car_daemon.engine.encoding import Encoded
from car_daemon.engine.frames import Halt, Park, Resume, Run, RunTexts, Share
from car_daemon.engine.inbox import Inbox

Command = Run | RunTexts | Encoded | Park | Resume | Halt | Share
# Requests that are sent together arrive within a millisecond; a first token takes some tens of them.
_PATIENCE_S = 0.003


class Commands(Inbox[Command]):
    """The loop's inbox; prompts that come together start together where nothing else runs."""

    def __init__(self, patience: float = _PATIENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._patience = patience
        self._clock = clock
        # Mutable state: the newest request that was announced, by the intake thread, and the newest of which the loop
        # knows that nobody comes soon: it waits, was refused, or runs elsewhere.
        self._announced = 0
        self._absent = 0

    def announce(self, key: int) -> None:
        """Note that a prompt is being prepared; younger requests have higher keys."""
        self._announced = key

    def gather(self, room: int) -> list[Command]:
        """Return at least one command, and while fewer than `room` requests came, those that follow within a moment.

        A first chunk of one prompt makes all others wait: reading them together takes less time. Nothing waits unless
        a newer one was announced, and for each of these only once.
        """
        commands = self.take(wait=True)
        deadline = self._clock() + self._patience
        while (awaited := self._awaited(commands, room)) and (left := deadline - self._clock()) > 0:
            commands += self.take(wait=True, patience=left)
        self._absent = awaited or self._absent
        return commands

    def _awaited(self, commands: list[Command], room: int) -> int:
        """Return the newest request that is to come, 0 where none is."""
        keys = [command.key for command in commands if isinstance(command, Run)]
        announced = self._announced
        return announced if 0 < len(keys) < room and announced > max(*keys, self._absent) else 0
