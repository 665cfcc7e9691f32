"""Queues between the threads of an engine."""

import time
from collections import deque
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue of commands that one thread receives in bulk."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._came = Lock()  # free once something came, which may have been received since
        self._came.acquire()

    def put(self, command: T) -> None:
        """Add a command; never blocks."""
        self._items.append(command)
        with suppress(RuntimeError):  # it is free already
            self._came.release()

    @property
    def empty(self) -> bool:
        """No command is queued now."""
        return not self._items

    def receive(self, *, wait: bool, timeout: float | None = None) -> list[T]:
        """Return all queued commands in order; with `wait` block for the first one, at most `timeout` seconds.

        Before Python 3.13 the queues of CPython wait for ever if their time ends between two looks.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while wait and not self._items:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return []
            self._came.acquire(timeout=-1 if left is None else left)
        commands = []
        while self._items:
            commands.append(self._items.popleft())
        return commands
