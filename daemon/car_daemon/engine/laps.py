"""Where the time of an engine goes: seconds by phase, from one lap to the next."""

from collections.abc import Callable
from typing import Literal, get_args

Phase = Literal["intake", "plan", "fill", "decode", "prefill", "sample", "text", "send", "embed"]

PHASES: tuple[Phase, ...] = get_args(Phase)


class Laps:
    """One watch for all phases; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Mutable state: totals since the start, and when the last lap ended.
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self.now = clock()

    def begin(self) -> None:
        """Leave out what passed since the last lap."""
        self.now = self._clock()

    def end(self, phase: Phase) -> float:
        """Count what passed since the last lap for a phase; return the moment."""
        moment = self._clock()
        self.seconds[phase] += moment - self.now
        self.now = moment
        return moment
