"""A circuit breaker: how often an engine may die before its model is given up for a while."""

from collections import deque

from msgspec import Struct


class CircuitLimits(Struct, frozen=True, kw_only=True):
    """The circuit opens at `deaths` within `window_s`, or in a row before the model was loaded once."""

    deaths: int = 6
    window_s: float = 30.0
    cool_down_s: float = 30.0


class CircuitBreaker:
    """Counts an engine's deaths; `now` is the caller's clock in seconds."""

    def __init__(self, limits: CircuitLimits) -> None:
        self._limits = limits
        self._deaths: deque[float] = deque(maxlen=limits.deaths)  # their times
        self._in_a_row = 0  # deaths since the model was loaded last
        self._trial = False  # whether this life decides if the circuit closes

    def __repr__(self) -> str:
        trial = " trial" if self._trial else ""
        return f"<CircuitBreaker {len(self._deaths)}/{self._limits.deaths} deaths, {self._in_a_row} in a row{trial}>"

    def ready(self) -> None:
        """Count a load: the trial, if it was one, succeeded."""
        self._in_a_row = 0
        self._trial = False

    def died(self, now: float) -> str | None:
        """Count a death; return why the circuit is open now, None while it is closed."""
        limits = self._limits
        self._deaths.append(now)
        self._in_a_row += 1
        if self._trial:
            return (
                f"the engine died again before the model was loaded, {limits.cool_down_s:g} s after the circuit opened"
            )
        if self._in_a_row >= limits.deaths:
            return f"the engine died {self._in_a_row} times before the model was loaded"
        if len(self._deaths) == limits.deaths and now - self._deaths[0] <= limits.window_s:
            return f"the engine died {limits.deaths} times within {limits.window_s:g} s"
        return None

    def try_again(self) -> None:
        """Let one more engine try after the cool-down; its death before READY opens the circuit again."""
        self._deaths.clear()
        self._in_a_row = 0
        self._trial = True
