"""The health of one engine, judged by its heartbeats."""

from typing import Literal, NamedTuple

from msgspec import Struct

from car_base.ipc.frames import Heartbeat, Ready, RunningJob

# A step may last this many times as long as the longest that is known to have ended.
_MOST_GROWTH = 20
_RATE = "tokens_per_s_"
_MIB = 1 << 20


class HealthLimits(Struct, frozen=True, kw_only=True):
    """Seconds without a heartbeat, of one step, and of one tokenizer's job for every MiB of its input.

    A loading engine may be silent for longer, because the interpreter may stop all of its threads while it maps large
    libraries from a cold disk.
    """

    silence_s: float = 5.0
    loading_silence_s: float = 30.0
    step_s: float = 10.0
    job_s: float = 5.0
    look_every_s: float = 0.5


class Hang(NamedTuple):
    """The part of an engine for which it is killed, why, and the request at which it hangs where that is known."""

    part: Literal["heartbeat", "step", "job", "template", "file"]
    why: str
    key: int | None = None


class HealthCheck:
    """The last signs of life of one engine; `now` is the caller's clock in seconds."""

    def __init__(self, limits: HealthLimits, now: float) -> None:
        self._limits = limits
        self._last_beat = now
        self._looked = now
        self._silence_s = limits.loading_silence_s  # the longest allowed now
        self._step = 0  # the number of the step that runs
        self._age_s = 0.0  # of that step
        self._longest_s = 0.0  # of the steps that are known to have ended
        self._job: RunningJob | None = None  # at the last heartbeat, or begun since

    def __repr__(self) -> str:
        return f"<HealthCheck step={self._step} age_s={self._age_s:g} longest_s={self._longest_s:g}>"

    def ready(self, ready: Ready, now: float) -> None:
        """Begin with the step times that the engine measured while it loaded."""
        self._last_beat = now
        self._silence_s = self._limits.silence_s
        rates = {name.removeprefix(_RATE): rate for name, rate in ready.inputs.items() if name.startswith(_RATE)}
        self._longest_s = max((int(rows) / rate for rows, rate in rates.items() if rate > 0), default=0.0)

    def beat(self, heartbeat: Heartbeat, now: float) -> None:
        """Count a heartbeat."""
        self._last_beat = now
        if heartbeat.step != self._step:
            self._longest_s = max(self._longest_s, self._age_s)
        self._step, self._age_s = heartbeat.step, heartbeat.step_age_ms / 1000
        self._job = heartbeat.job

    def begun(self, job: RunningJob) -> None:
        """Keep the job that has just begun, at which an engine that is silent from now on probably hangs."""
        self._job = job

    def look(self, now: float) -> Hang | None:
        """Return the part that hangs, None where the engine is healthy."""
        late = now - self._looked - self._limits.look_every_s
        self._looked = now
        if late > self._limits.look_every_s:
            # The daemon itself was stalled, and has not read the heartbeats that came meanwhile.
            self._last_beat += late
        if now - self._last_beat > self._silence_s:
            why = f"no heartbeat for {now - self._last_beat:.1f} s, the limit is {self._silence_s:g} s"
            return Hang("heartbeat", why, None if self._job is None else self._job.key)
        limit_s = max(self._limits.step_s, _MOST_GROWTH * self._longest_s)
        if self._age_s > limit_s:
            return Hang("step", f"a step has lasted {self._age_s:.1f} s, the limit is {limit_s:g} s")
        return None if self._job is None else self._judged(self._job)

    def _judged(self, job: RunningJob) -> Hang | None:
        """Return a job that lasts too long, because its chat template or its grammar may not end."""
        age_s, limit_s = job.age_ms / 1000, self._limits.job_s * max(1.0, job.input_bytes / _MIB)
        if age_s <= limit_s:
            return None
        if job.key is None:
            return Hang("template", f"the chat template has been tried for {age_s:.1f} s, the limit is {limit_s:g} s")
        return Hang("job", f"preparing a request has lasted {age_s:.1f} s, the limit is {limit_s:g} s", job.key)
