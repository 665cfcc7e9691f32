"""How late the event loop runs what is due."""

import asyncio

_PERIOD_S = 0.5


class LoopLag:
    """Measures the delay of a timer of its own; `milliseconds` is the last delay."""

    def __init__(self) -> None:
        # Mutable state: the last delay, when the timer is due, and the timer.
        self.milliseconds = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure from now on, in the running event loop."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _PERIOD_S
        self._timer = loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.milliseconds = round(max(0.0, asyncio.get_running_loop().time() - self._due) * 1000, 1)
        self.start()
