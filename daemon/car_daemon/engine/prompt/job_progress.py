"""The job that is being prepared, as the heartbeat reports it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from car_daemon.ipc.frames import JobBegun, RunningJob


class _Begun(NamedTuple):
    at: float
    input_bytes: int
    key: int | None


class JobProgress:
    """The tokenizer's and the loader's part of a heartbeat; written by these threads, read by the intake thread.

    Each job is sent when it begins, too: one call into C, as for a regular expression, may stop all threads at once.
    """

    def __init__(self, send: Callable[[JobBegun], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._send = send
        self._clock = clock
        self._begun: _Begun | None = None  # None between jobs

    @contextmanager
    def doing(self, input_bytes: int, key: int | None = None) -> Iterator[None]:
        """Count the block as one job; without a key it is the chat template's."""
        self._begun = _Begun(self._clock(), input_bytes, key)
        self._send(JobBegun(RunningJob(0.0, input_bytes, key)))
        try:
            yield
        finally:
            self._begun = None

    def running(self) -> RunningJob | None:
        """Return the job that runs now, None between jobs."""
        begun = self._begun
        if begun is None:
            return None
        return RunningJob((self._clock() - begun.at) * 1000, begun.input_bytes, begun.key)
