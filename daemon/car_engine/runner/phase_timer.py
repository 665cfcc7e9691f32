"""Seconds of the engine loop by phase."""

from collections.abc import Callable

from car_base.ipc.types import PHASES, Phase


class PhaseTimer:
    """Count the time between two calls for a phase; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)  # Since the start.
        self.now = clock()  # Time of the last call.

    def begin(self) -> None:
        """Skip the time since the last call."""
        self.now = self._clock()

    def end(self, phase: Phase) -> float:
        """Count the time since the last call for a phase; return the current time."""
        now = self._clock()
        self.seconds[phase] += now - self.now
        self.now = now
        return now
