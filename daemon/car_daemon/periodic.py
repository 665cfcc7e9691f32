"""What is done again and again."""

import asyncio
from collections.abc import Callable


class Periodic:
    """Calls `do` every `period` seconds from the start on, not at the start; what it raises ends nothing."""

    def __init__(self, period: float, do: Callable[[], None]) -> None:
        self._period = period
        self._do = do
        # Mutable state: the timer of the next time.
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._timer = asyncio.get_running_loop().call_later(self._period, self._again)

    def stop(self) -> None:
        """End it; `do` may do so itself."""
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self.start()
        self._do()
