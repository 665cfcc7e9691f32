"""How often an engine may die before its model is left alone for a while."""

from collections import deque

from msgspec import Struct


class CircuitLimits(Struct, frozen=True, kw_only=True):
    """So many deaths within `window_s`, or in a row before the model was ever loaded, open the circuit."""

    deaths: int = 6
    window_s: float = 30.0
    cool_down_s: float = 30.0


class Circuit:
    """Counts an engine's deaths; `now` is the caller's clock in seconds."""

    def __init__(self, limits: CircuitLimits) -> None:
        self._limits = limits
        # Mutable state: the times of the last deaths, those in a row before READY, whether this life is a trial.
        self._deaths: deque[float] = deque(maxlen=limits.deaths)
        self._in_a_row = 0
        self._trial = False

    def ready(self) -> None:
        """Take note that the model is served: the trial, if it was one, succeeded."""
        self._in_a_row = 0
        self._trial = False

    def died(self, now: float) -> bool:
        """Take note of a death; tell whether the circuit is open now."""
        self._deaths.append(now)
        self._in_a_row += 1
        limits = self._limits
        often = len(self._deaths) == limits.deaths and now - self._deaths[0] <= limits.window_s
        return self._trial or often or self._in_a_row >= limits.deaths

    def try_again(self) -> None:
        """Let one more engine try, after the cool-down: where it dies before READY the circuit is open again."""
        self._deaths.clear()
        self._in_a_row = 0
        self._trial = True
