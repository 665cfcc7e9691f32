"""Decisions between two lives of an engine: restart it after a backoff, or give its model up for a while."""

import signal
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


# The signals that end native code at a forbidden instruction, access or failed assertion.
_CRASHES = {-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)}


class RestartLimits(Struct, frozen=True, kw_only=True):
    """The deaths an engine may have, and the backoff after the first in seconds, which doubles with each one."""

    circuit: CircuitLimits = CircuitLimits()
    first_backoff_s: float = 0.1


class RestartPolicy:
    """Backoff, circuit and packing of one replica's engines; `now` is the caller's clock in seconds."""

    def __init__(self, limits: RestartLimits) -> None:
        self._limits = limits
        self._circuit = CircuitBreaker(limits.circuit)
        self._backoff_s = limits.first_backoff_s
        self.packed = True  # whether the next engine may pack the weights for these cores
        self._load_causes: set[tuple[str, bool]] = set()  # of deaths since the last load, each with its packing
        self._crashed: set[bool] = set()  # packings whose loads crashed since the last load

    def __repr__(self) -> str:
        return f"<RestartPolicy backoff_s={self._backoff_s:g} packed={self.packed} {self._circuit!r}>"

    @property
    def cool_down_s(self) -> float:
        """Seconds before a model that was given up is tried again."""
        return self._limits.circuit.cool_down_s

    def ready(self) -> None:
        """Count a load that succeeded: the backoff begins anew, and a trial closes the circuit."""
        self._circuit.ready()
        self._load_causes.clear()
        self._crashed.clear()
        self._backoff_s = self._limits.first_backoff_s

    def died_loading(self, status: int, cause: str | None) -> bool:
        """Return whether a load died of this cause before, or crashed otherwise packed: another try would end alike.

        A crash is a cause too; it toggles packing, since packed weights crash on some CPUs.
        """
        crashed = status in _CRASHES
        if cause is None and crashed:
            cause = f"signal {-status}"
        repeated = (cause, self.packed) in self._load_causes
        if cause is not None:
            self._load_causes.add((cause, self.packed))
        if crashed:
            self._crashed.add(self.packed)
            self.packed = not self.packed
        return repeated or (crashed and self.packed in self._crashed)

    def died(self, now: float) -> float | str:
        """Return the seconds before the next life, or why the model is given up for `cool_down_s`."""
        if (reason := self._circuit.died(now)) is not None:
            return reason
        backoff, self._backoff_s = self._backoff_s, 2 * self._backoff_s
        return backoff

    def try_again(self) -> None:
        """Let one engine try after the cool-down."""
        self._circuit.try_again()
