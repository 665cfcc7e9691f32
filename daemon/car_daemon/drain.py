"""How the daemon ends: nothing new is admitted, what runs and waits is finished, the rest is refused at the limit."""

import asyncio

from car_daemon.inference import Inference
from car_daemon.pending import Reply
from car_daemon.scheduler.totals import Totals
from car_protocol.admin import Drained


class Drain:
    """Begins once; of several limits the one that passes first counts."""

    def __init__(self, inference: Inference, totals: Totals) -> None:
        self._inference = inference
        self._totals = totals
        # Mutable state: whether it began and how long it may take, whether its time is up, how many requests were
        # completed before it, who waits for its end, and what came of it.
        self.begun = asyncio.Event()
        self.patience_s = 0.0
        self._time_is_up = asyncio.Event()
        self._completed_before = 0
        self._replies: list[Reply] = []
        self._outcome: Drained | None = None

    def begin(self, patience_s: float, reply: Reply | None = None) -> None:
        """Admit nothing from now on, and refuse in so many seconds what is not done; `reply` hears of the end."""
        if not self.begun.is_set():
            self.begun.set()
            self.patience_s = patience_s
            self._completed_before = self._totals.completed
            self._inference.drain()
        if reply is not None and self._outcome is not None:
            reply.result(self._outcome)
        elif reply is not None:
            self._replies.append(reply)
        asyncio.get_running_loop().call_later(patience_s, self.hurry)

    def hurry(self) -> None:
        """Refuse now what is not done."""
        self._time_is_up.set()

    async def finish(self) -> None:
        """Return once everything in flight is answered, and whoever asked for the drain too."""
        waits = [asyncio.create_task(event.wait()) for event in (self._inference.drained, self._time_is_up)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        completed, refused = self._totals.completed - self._completed_before, self._totals.in_flight
        self._inference.refuse_all("draining")
        self._outcome = Drained(completed, refused)
        for reply in self._replies:
            reply.result(self._outcome)
