"""Texts to embed or to rank, a batch a step beside what generates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from car_daemon.engine.frames import End, Extra, Fault, Row, RunTexts
from car_protocol.answer import Usage

NO_SEQUENCE = -1


class Embedder(Protocol):
    """What turns batches of token lists into vectors, or pairs into scores."""

    ranks: bool

    def batches(self, inputs: list[list[int]]) -> list[list[int]]:
        """Return the indices of the inputs of each batch, in order."""
        ...

    def embed(self, inputs: list[list[int]], *, normalize: bool) -> list[list[float]]:
        """Return the vectors of one batch."""
        ...

    def score(self, pairs: list[list[int]]) -> list[float]:
        """Return the scores of one batch."""
        ...


@dataclass(slots=True)
class _Job:
    """One request: its texts, the batches to go, and what was computed."""

    run: RunTexts
    inputs: list[list[int]]
    batches: list[list[int]]
    started: float
    done: list[list[float]] = field(default_factory=list)


class CannotEmbed(Exception):
    """This model's embedder does not open."""


class Texts:
    """Runs requests about texts that hold a lease, each in its turn; the embedder opens with the first of them."""

    def __init__(self, open_embedder: Callable[[], Embedder], clock: Callable[[], float]) -> None:
        self._open = open_embedder
        self._clock = clock
        # Mutable state: the embedder once it is open, requests by key, whose turn is next first, parked ones, and the
        # seconds that others may work until the next batch.
        self._embedder: Embedder | None = None
        self._jobs: dict[int, _Job] = {}
        self._parked: dict[int, _Job] = {}
        self._owed = 0.0

    @property
    def busy(self) -> bool:
        """Whether any request has work."""
        return bool(self._jobs)

    @property
    def due(self) -> bool:
        """Whether others have worked as long as the last batch took: texts get half of the time beside them."""
        return self._owed <= 0

    def yield_to(self, seconds: float) -> None:
        """Count what others worked."""
        self._owed -= seconds

    def start(self, run: RunTexts) -> list[Row]:
        """Take a request that holds a lease; nothing is reported yet, unless the embedder does not open."""
        inputs = split(run.tokens, run.lengths)
        if self._embedder is None:
            try:
                self._embedder = self._open()
            except CannotEmbed:
                return [self._ended(_Job(run, inputs, [], self._clock()), "embedder")]
        self._jobs[run.key] = _Job(run, inputs, self._embedder.batches(inputs), self._clock())
        return []

    def park(self, key: int) -> bool:
        """Set a request aside; False where there is none."""
        if key in self._jobs:
            self._parked[key] = self._jobs.pop(key)
        return key in self._parked

    def resume(self, key: int) -> bool:
        """Go on with a request that was set aside; False where there is none."""
        if key in self._parked:
            self._jobs[key] = self._parked.pop(key)
        return key in self._jobs

    def halt(self, key: int) -> list[Row]:
        """End a request early; nothing where there is none."""
        job = self._jobs.pop(key, None) or self._parked.pop(key, None)
        return [] if job is None else [self._ended(job, None)]

    def step(self) -> list[Row]:
        """Run one batch of the request whose turn it is; return its end if that was its last."""
        key = next(iter(self._jobs))
        job = self._jobs.pop(key)
        started = self._clock()
        try:
            job.done += self._run(job, job.batches.pop(0))
        except RuntimeError:
            return [self._ended(job, "embedder")]
        finally:
            self._owed = self._clock() - started
        if job.batches:
            self._jobs[key] = job
            return []
        return [self._ended(job, None)]

    def _run(self, job: _Job, batch: list[int]) -> list[list[float]]:
        assert self._embedder is not None
        inputs = [job.inputs[index] for index in batch]
        if self._embedder.ranks:
            return [[score] for score in self._embedder.score(inputs)]
        return self._embedder.embed(inputs, normalize=job.run.normalize)

    def _ended(self, job: _Job, fault: Fault | None) -> Row:
        whole = len(job.done) == len(job.inputs)
        tokens = sum(map(len, job.inputs))
        end = End(
            reason="stop" if whole else None,
            stop=None,
            usage=Usage(tokens, 0, 0),
            prefill_ms=(self._clock() - job.started) * 1000,
            decode_ms=0.0,
            fault=fault,
        )
        extra = Extra(vectors=job.done) if whole else None
        return Row(job.run.key, NO_SEQUENCE, "", 0, tokens, extra, end)


def split(tokens: bytes, lengths: list[int]) -> list[list[int]]:
    """Return the token lists of several texts from one run of int32 values."""
    values = memoryview(tokens).cast("i").tolist()
    texts, start = [], 0
    for length in lengths:
        texts.append(values[start : start + length])
        start += length
    return texts
