"""The daemon's drain: new requests are refused, accepted requests are finished, the rest is refused at the deadline."""

import asyncio

from car_daemon.requests.answer import Responder
from car_daemon.requests.inference import Inference
from car_daemon.scheduler.scheduler import Scheduler
from car_protocol.status import Drained


class Drain:
    """Begins once; of several deadlines the earliest counts."""

    def __init__(self, inference: Inference, scheduler: Scheduler) -> None:
        self._inference = inference
        self._scheduler = scheduler
        self._totals = scheduler.totals
        self.begun = asyncio.Event()
        self.patience_s = 0.0  # of the first call of `begin`
        self._finished = asyncio.Event()  # set once all requests are answered
        self._time_is_up = asyncio.Event()
        self._completed_before = 0  # requests, when it began
        self._responders: list[Responder] = []  # of calls of `daemon/drain` that are answered at the end
        self._outcome: Drained | None = None

    def begin(self, patience_s: float, responder: Responder | None = None) -> None:
        """Refuse new requests now, and unfinished requests in `patience_s` seconds; `responder` gets the outcome."""
        if not self.begun.is_set():
            self.begun.set()
            self.patience_s = patience_s
            self._completed_before = self._totals.completed
            self._scheduler.drain()
            self.changed()
        if responder is not None and self._outcome is not None:
            responder.result(self._outcome)
        elif responder is not None:
            self._responders.append(responder)
        asyncio.get_running_loop().call_later(patience_s, self.hurry)

    def changed(self) -> None:
        """Read again whether requests are unfinished: one was answered."""
        if self.begun.is_set() and self._inference.idle:
            self._finished.set()

    def hurry(self) -> None:
        """Refuse unfinished requests now."""
        self._time_is_up.set()

    async def finish(self) -> None:
        """Return once all requests are answered, calls of `daemon/drain` included."""
        waits = [asyncio.create_task(event.wait()) for event in (self._finished, self._time_is_up)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        completed, refused = self._totals.completed - self._completed_before, self._totals.in_flight
        self._inference.refuse_all("draining")
        self._outcome = Drained(completed, refused)
        for responder in self._responders:
            responder.result(self._outcome)
