"""Commands from the intake and tokenizer threads to the thread that works on them."""

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Forgotten:
    """Keys of jobs that nobody waits for any more; told by one thread, asked by another."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def add(self, key: int) -> None:
        """Note that a job is not wanted, whether it is done already or not."""
        self._keys.add(key)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def clear(self) -> None:
        """Forget all of them, when no job is left."""
        self._keys.clear()


class Inbox(Generic[T]):
    """A queue of commands that one thread takes in bulk."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[T] = SimpleQueue()

    def put(self, command: T) -> None:
        """Add a command; never blocks."""
        self._queue.put(command)

    @property
    def empty(self) -> bool:
        """Whether nothing waits now."""
        return self._queue.empty()

    def take(self, *, wait: bool, patience: float | None = None) -> list[T]:
        """Return all commands in order; with `wait` at least one, unless none came within `patience` seconds."""
        try:
            commands = [self._queue.get(timeout=patience)] if wait else []
        except Empty:
            return []
        while not self._queue.empty():
            commands.append(self._queue.get())
        return commands
