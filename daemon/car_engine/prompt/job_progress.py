"""The job that is being prepared, as the heartbeat reports it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from car_base.ipc.frames import JobBegun, RunningJob

Clock = Callable[[], float]
# Of the time that passes a job counts as working for this share at least, though other programs may have the cores for
# longer: a job that waits for something that never comes does not work at all.
_LEAST_SHARE = 1 / 6


def thread_clock() -> Clock:
    """Return the clock of this thread's work in seconds, for any thread to read; of the time if there is none."""
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return time.perf_counter
    number = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(number)


class _Begun(NamedTuple):
    at: float
    worked: Clock
    worked_at: float  # that clock's time at the beginning
    input_bytes: int
    key: int


class JobProgress:
    """The tokenizer's part of a heartbeat; written by its thread, read by the intake thread.

    Each job is sent when it begins, too: one call into C, as for a regular expression, may stop all threads at once.
    """

    def __init__(
        self,
        send: Callable[[JobBegun], None],
        clock: Clock = time.perf_counter,
        clock_of_thread: Callable[[], Clock] = thread_clock,
    ) -> None:
        self._send = send
        self._clock = clock
        self._clock_of_thread = clock_of_thread
        self._begun: _Begun | None = None  # None between jobs

    @contextmanager
    def doing(self, input_bytes: int, key: int) -> Iterator[None]:
        """Count the block as one job of this thread."""
        worked = self._clock_of_thread()
        self._begun = _Begun(self._clock(), worked, worked(), input_bytes, key)
        self._send(JobBegun(RunningJob(0.0, input_bytes, key)))
        try:
            yield
        finally:
            self._begun = None

    def running(self, runs_since: float) -> RunningJob | None:
        """Return the job that runs now, None between jobs; the time without work counts from `runs_since` on."""
        begun = self._begun
        if begun is None:
            return None
        try:
            worked = begun.worked() - begun.worked_at
        except OSError:  # its thread has ended meanwhile
            return None
        age_s = max(worked, (self._clock() - max(begun.at, runs_since)) * _LEAST_SHARE)
        return RunningJob(age_s * 1000, begun.input_bytes, begun.key)
