"""uvicorn's server, ended by a signal or after a time without clients; an idle door never wakes up."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from car_http.crowds import Strangers
from car_http.protocol import DoorState

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class DoorServer(uvicorn.Server):
    """The server; `announce` is called once it serves, `exit_idle_s` is None where it stays without clients."""

    def __init__(
        self,
        config: uvicorn.Config,
        strangers: Strangers,
        announce: Callable[[], None],
        exit_idle_s: float | None = None,
    ) -> None:
        super().__init__(config)
        self.server_state = DoorState(strangers)
        self._announce = announce
        self._exit_idle_s = exit_idle_s
        self._exit = asyncio.Event()

    async def main_loop(self) -> None:
        """Wait for a signal, or for a time in which no client was connected."""
        self._announce()
        answered = -1
        while not self.should_exit:
            try:
                async with asyncio.timeout(self._exit_idle_s):
                    await self._exit.wait()
            except TimeoutError:
                idle = not self.server_state.connections and self.server_state.total_requests == answered
                answered = self.server_state.total_requests
                if idle:
                    return

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End by signals while serving; the exit code stays 0."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.should_exit = True
        self._exit.set()
