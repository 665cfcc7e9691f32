"""When the next deadline passes."""

import asyncio
import math
from collections.abc import Callable

# After a defect what is due is tried again, but not at once.
_PAUSE_S = 0.1


class Deadlines:
    """Calls `expire` at the time that `next_due` returns; times in seconds of `clock`, None where nothing is due."""

    def __init__(
        self, next_due: Callable[[], float | None], expire: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._next_due = next_due
        self._expire = expire
        self._clock = clock
        # Mutable state: the timer, and the time that it is set to.
        self._timer: asyncio.TimerHandle | None = None
        self._set_to = math.inf

    def add(self, due: float | None) -> None:
        """Take note of one more deadline."""
        if due is not None and due < self._set_to:
            self._set()

    def _set(self, pause: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._next_due()
        self._set_to = math.inf if due is None else due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(pause, due - self._clock()), self._passed)

    def _passed(self) -> None:
        try:
            self._expire()
        except Exception:
            # Whatever goes wrong with one request, the others have deadlines too.
            self._set(_PAUSE_S)
            raise
        self._set()
