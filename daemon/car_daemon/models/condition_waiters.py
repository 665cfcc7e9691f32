"""Waits for conditions on state that changes elsewhere."""

import asyncio
from collections.abc import Callable


class ConditionWaiters:
    """Coroutines that wait for conditions, evaluated at every change: none that was true for a moment is missed."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<ConditionWaiters: {len(self._waiting)} waiting>"

    def changed(self) -> None:
        """Evaluate all conditions, and resume the waiters of the true ones."""
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return True once the condition was true; False where it was not within the timeout."""
        if condition():
            return True
        waiting = (condition, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await asyncio.wait([waiting[1]], timeout=timeout_s)
        finally:
            self._waiting.remove(waiting)
        return waiting[1].done()
