"""Whether an engine still works, by its heartbeats."""

from msgspec import Struct

from car_daemon.engine.frames import Heartbeat, Ready

# A step may take this many times as long as the longest that is known to have ended.
_MOST_GROWTH = 20
_RATE = "tokens_per_s_"


class VitalLimits(Struct, frozen=True, kw_only=True):
    """Seconds without a heartbeat, and of one step. While it loads the interpreter may stop all of its threads: it maps
    large libraries, from a cold disk perhaps.
    """

    silence_s: float = 5.0
    loading_silence_s: float = 30.0
    step_s: float = 10.0
    look_every_s: float = 0.5


class Vitals:
    """What is known of one engine's health; `now` is the caller's clock in seconds."""

    def __init__(self, limits: VitalLimits, now: float) -> None:
        self._limits = limits
        # Mutable state: when it was heard and looked at last, how long it may be silent, the step that runs and its
        # age, and the longest step that is known to have ended, in seconds.
        self._heard = now
        self._looked = now
        self._silence_s = limits.loading_silence_s
        self._step = 0
        self._age = 0.0
        self._longest = 0.0

    def ready(self, ready: Ready, now: float) -> None:
        """Take note of an engine that is loaded, and of how long its steps took then."""
        self._heard = now
        self._silence_s = self._limits.silence_s
        rates = {name.removeprefix(_RATE): rate for name, rate in ready.inputs.items() if name.startswith(_RATE)}
        self._longest = max((int(rows) / rate for rows, rate in rates.items() if rate > 0), default=0.0)

    def beat(self, heartbeat: Heartbeat, now: float) -> None:
        """Take note of a heartbeat."""
        self._heard = now
        if heartbeat.step != self._step:
            self._longest = max(self._longest, self._age)
        self._step, self._age = heartbeat.step, heartbeat.step_age_ms / 1000

    def look(self, now: float) -> str | None:
        """Return what is wrong with it, None where nothing is."""
        late = now - self._looked - self._limits.look_every_s
        self._looked = now
        if late > self._limits.look_every_s:
            # We were stalled ourselves, and heard nothing of what came meanwhile.
            self._heard += late
        if now - self._heard > self._silence_s:
            return "no heartbeat"
        if self._age > max(self._limits.step_s, _MOST_GROWTH * self._longest):
            return "a step does not end"
        return None
