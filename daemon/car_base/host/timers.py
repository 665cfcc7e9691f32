"""Timers and waits of the event loop: deadlines, idle times, its lag, conditions, and readings cached for 200 ms."""

import asyncio
import math
from collections.abc import Callable
from typing import Generic, TypeVar, TypeVarTuple

# A deadline's callback that raised is retried after a pause, because its work is still due.
_RETRY_S = 0.1
_LAG_PERIOD_S = 0.5


class Timer:
    """One delayed call on the running event loop; arming replaces a delay that still runs."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    @property
    def armed(self) -> bool:
        """True while a call is to come."""
        return self._handle is not None

    def arm(self, delay_s: float) -> None:
        """Call back in `delay_s` seconds from now."""
        self.cancel()
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Call back no more, until it is armed again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()


class Periodic:
    """Calls `do` after every period of `period` seconds; an exception of `do` does not end the repetition."""

    def __init__(self, period: float, do: Callable[[], None]) -> None:
        self._period = period
        self._do = do
        self._timer = Timer(self._repeat)

    @property
    def running(self) -> bool:
        """True while another call is to come."""
        return self._timer.armed

    def start(self) -> None:
        """Begin in the running event loop; the first call comes after one period."""
        self._timer.arm(self._period)

    def stop(self) -> None:
        """End the repetition; `do` may call this."""
        self._timer.cancel()

    def _repeat(self) -> None:
        self.start()
        self._do()


class Deadlines:
    """Calls `expire` at the time that `next_due` returns, in seconds of `clock`; None if nothing is due."""

    def __init__(
        self, next_due: Callable[[], float | None], expire: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._next_due = next_due
        self._expire = expire
        self._clock = clock
        self._timer = Timer(self._passed)
        self._set_to = math.inf  # the time that the timer is armed for

    def add(self, due: float | None) -> None:
        """Take one more deadline into account."""
        if due is not None and due < self._set_to:
            self._set()

    def _set(self, pause: float = 0.0) -> None:
        due = self._next_due()
        if due is None:
            self._set_to = math.inf
            self._timer.cancel()
        else:
            self._set_to = due
            self._timer.arm(max(pause, due - self._clock()))

    def _passed(self) -> None:
        try:
            self._expire()
        except Exception:
            # One request's failure leaves the deadlines of the others in force.
            self._set(_RETRY_S)
            raise
        self._set()


class Idleness:
    """Calls `end` once `busy` was false for `limit` seconds; a limit of None never ends."""

    def __init__(self, limit: float | None, busy: Callable[[], bool], end: Callable[[], None]) -> None:
        self._limit = limit
        self._busy = busy
        self._timer = Timer(end)

    def changed(self) -> None:
        """Read `busy` again: it may have changed."""
        if self._busy():
            self._timer.cancel()
        elif self._limit is not None and not self._timer.armed:
            self._timer.arm(self._limit)

    def stop(self) -> None:
        """Never call `end` from now on."""
        self._limit = None
        self._timer.cancel()


class LoopLag:
    """The delay of the event loop, measured by a timer every half second."""

    def __init__(self) -> None:
        self._timer = Timer(self._measure)
        self._due = 0.0  # in the loop's time
        self.milliseconds = 0.0  # the last delay

    def start(self) -> None:
        """Measure from now on, in the running event loop."""
        self._due = asyncio.get_running_loop().time() + _LAG_PERIOD_S
        self._timer.arm(_LAG_PERIOD_S)

    def stop(self) -> None:
        """Stop measuring."""
        self._timer.cancel()

    def _measure(self) -> None:
        self.milliseconds = round(max(0.0, asyncio.get_running_loop().time() - self._due) * 1000, 1)
        self.start()


P = TypeVarTuple("P")
T = TypeVar("T")
# Short enough for figures that people watch, and long enough that a client in a loop costs next to nothing.
_TTL_S = 0.2


class TtlCache(Generic[*P, T]):
    """Calls `read` at most once in 200 ms with the same arguments; `clock` is in seconds."""

    def __init__(self, read: Callable[[*P], T], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._kept: dict[object, tuple[float, T]] = {}  # time and value of each reading, by its arguments

    def __call__(self, *args: *P) -> T:
        """Return the cached value, or read it."""
        now = self._clock()
        kept = self._kept.get(args)
        if kept is not None and now - kept[0] < _TTL_S:
            return kept[1]
        value = self._read(*args)
        self._kept = {key: (read_at, old) for key, (read_at, old) in self._kept.items() if now - read_at < _TTL_S}
        self._kept[args] = now, value
        return value


class ConditionWaiters:
    """Coroutines that wait for conditions, evaluated at every change: none that was true for a moment is missed."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<ConditionWaiters: {len(self._waiting)} waiting>"

    def changed(self) -> None:
        """Evaluate all conditions, and resume each waiter whose condition is true."""
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return True once the condition was true; False if it was not within the timeout."""
        if condition():
            return True
        waiting = (condition, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await asyncio.wait([waiting[1]], timeout=timeout_s)
        finally:
            self._waiting.remove(waiting)
        return waiting[1].done()
