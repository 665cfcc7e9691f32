"""Queues between the threads of an engine."""

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Forgotten:
    """Keys of cancelled jobs; added by the intake thread, read by the tokenizer thread."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def add(self, key: int) -> None:
        """Add the key of a cancelled job, which may be done already."""
        self._keys.add(key)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def clear(self) -> None:
        """Drop all keys, once the queue of jobs is empty."""
        self._keys.clear()


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
