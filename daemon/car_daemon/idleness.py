"""When nobody has been connected for so long that the daemon may go until its socket is used again."""

import asyncio
from collections.abc import Callable


class Idleness:
    """Calls `end` once nobody was `busy` for `limit` seconds; None waits for ever."""

    def __init__(self, limit: float | None, busy: Callable[[], bool], end: Callable[[], None]) -> None:
        self._limit = limit
        self._busy = busy
        self._end = end
        # Mutable state: the timer.
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Take note that somebody may have come or gone."""
        if self._busy():
            self.stop()
        elif self._limit is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._end)

    def stop(self) -> None:
        """End nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
