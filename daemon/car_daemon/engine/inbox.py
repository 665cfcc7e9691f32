"""Commands from the intake and tokenizer threads to the thread that works on them."""

from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue of commands that one thread takes in bulk."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[T] = SimpleQueue()

    def put(self, command: T) -> None:
        """Add a command; never blocks."""
        self._queue.put(command)

    def take(self, *, wait: bool) -> list[T]:
        """Return all commands in order; with `wait` at least one."""
        commands = [self._queue.get()] if wait else []
        while not self._queue.empty():
            commands.append(self._queue.get())
        return commands
