"""Waits for something to become true that others bring about."""

import asyncio
from collections.abc import Callable


class Changes:
    """Conditions are looked at whenever something changed, at once: none that was true for a moment is missed."""

    def __init__(self) -> None:
        # Mutable state: the conditions that are waited for, and who waits.
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def happened(self) -> None:
        """Let those go on whose condition is true now."""
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return once it was true; tell whether it was within the time."""
        if condition():
            return True
        waiting = (condition, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await asyncio.wait([waiting[1]], timeout=timeout_s)
        finally:
            self._waiting.remove(waiting)
        return waiting[1].done()
