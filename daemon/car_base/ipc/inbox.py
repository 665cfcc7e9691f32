"""Queues between the threads of an engine."""

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue of commands that one thread receives in bulk."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[T] = SimpleQueue()

    def put(self, command: T) -> None:
        """Add a command; never blocks."""
        self._queue.put(command)

    @property
    def empty(self) -> bool:
        """No command is queued now."""
        return self._queue.empty()

    def receive(self, *, wait: bool, timeout: float | None = None) -> list[T]:
        """Return all queued commands in order; with `wait` block for the first one, at most `timeout` seconds."""
        try:
            commands = [self._queue.get(timeout=timeout)] if wait else []
        except Empty:
            return []
        while not self._queue.empty():
            commands.append(self._queue.get())
        return commands
