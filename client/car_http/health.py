"""Whether the daemon answers, as of the last second: any program of the machine may send the request."""

import asyncio
import time
from collections.abc import Callable

from car_client.errors import CardError
from car_http.daemon.pool import DaemonPool

# The promise of `GET /health`: its answer is at most this old, and the daemon gets at most one call in this time.
FRESH_S = 1.0


class Health:
    """The outcome of the newest call to the daemon; requests at once share one call."""

    def __init__(self, pool: DaemonPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._error: CardError | None = None
        self._until = float("-inf")  # when the daemon is called again
        self._lock = asyncio.Lock()

    async def error(self) -> CardError | None:
        """Return the error of a daemon that does not answer, None while it does."""
        async with self._lock:
            if self._clock() >= self._until:
                self._error = await self._call()
                self._until = self._clock() + FRESH_S
            return self._error

    async def _call(self) -> CardError | None:
        try:
            await self._pool.result("inference/capacity", {})
        except CardError as error:
            return error
        return None
