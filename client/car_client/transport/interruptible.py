"""Work of one owner that ends at once when the owner is closed, whatever it waits for."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The owner was closed before the work was done."""


class Interruptible:
    """Runs coroutines until `end`, which cancels the unfinished ones."""

    def __init__(self) -> None:
        self.over = False
        self._running: set[asyncio.Future[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; raises Interrupted after `end`, also where it is called meanwhile."""
        if self.over:
            work.close()
            raise Interrupted
        task = asyncio.ensure_future(work)
        self._running.add(task)
        try:
            await asyncio.gather(task, return_exceptions=True)
        finally:
            self._running.discard(task)
        if self.over:
            raise Interrupted
        return task.result()

    def end(self) -> None:
        """Cancel the work in progress, and run none from now on."""
        self.over = True
        for task in self._running:
            task.cancel()
