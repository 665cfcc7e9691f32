"""Requests that embed or rank texts, a batch a step beside the generations."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from car_base.ipc.codec import packed_vector, tokens_of
from car_base.ipc.frames import End, Extra, Fault, RequestUpdate, RunTexts
from car_protocol.answer import Usage

NO_SEQUENCE = -1


# The batches of a request's texts: the indices of each, and their vectors, or scores as vectors of one number.
Batches = Iterator[tuple[list[int], list[list[float]]]]
# Returns the batches of token lists, with or without `normalize`, each computed as it is taken.
Embed = Callable[[list[list[int]], bool], Batches]


@dataclass(slots=True)
class _Job:
    """One request: its texts, the batches that are left, and the vectors so far."""

    frame: RunTexts
    inputs: list[list[int]]
    batches: Batches
    started: float
    vectors: dict[int, list[float]] = field(default_factory=dict)  # By index of the text.
    computed: int = 0  # The tokens of the texts whose vectors it has.

    def add(self, batch: list[int], vectors: list[list[float]]) -> int:
        """Add the vectors of a batch of texts; return its tokens."""
        self.vectors.update(zip(batch, vectors, strict=True))
        tokens = sum(len(self.inputs[index]) for index in batch)
        self.computed += tokens
        return tokens


class CannotEmbed(Exception):
    """This model's embedder does not open."""


class Texts:
    """Requests about texts take turns by the batch; the embedder opens with the first request."""

    def __init__(self, open_embedder: Callable[[], Embed], clock: Callable[[], float]) -> None:
        self._open = open_embedder
        self._clock = clock
        self._embed: Embed | None = None  # Once it opened.
        self._jobs: dict[int, _Job] = {}  # By request key, the next turn first.
        self._parked: dict[int, _Job] = {}
        self._yielding: Collection[int] = ()  # Keys of the requests without a turn while an answer is written.
        self.counters = {"text_tokens": 0.0}  # Since the start.
        self._owed = 0.0  # Seconds of steps that go before the next batch.

    @property
    def busy(self) -> bool:
        """Whether any request has work."""
        return bool(self._jobs)

    @property
    def due(self) -> bool:
        """Whether steps have run as long as the last batch: texts get half of the time beside generations."""
        return self._owed <= 0

    def yield_to(self, seconds: float) -> None:
        """Count the seconds of a step."""
        self._owed -= seconds

    def let_yield(self, keys: Collection[int]) -> None:
        """Give these requests a turn only while no answer is written."""
        self._yielding = keys

    def start(self, frame: RunTexts) -> list[RequestUpdate]:
        """Start a request; returns its end if the embedder does not open."""
        inputs = split(frame.prepared.tokens, frame.prepared.lengths)
        if self._embed is None:
            try:
                self._embed = self._open()
            except CannotEmbed:
                return [self._ended(_Job(frame, inputs, iter(()), self._clock()), "embedder")]
        self._jobs[frame.key] = _Job(frame, inputs, self._embed(inputs, frame.normalize), self._clock())
        return []

    def park(self, key: int) -> bool:
        """Park a request; False if the key is unknown."""
        if key in self._jobs:
            self._parked[key] = self._jobs.pop(key)
        return key in self._parked

    def resume(self, key: int) -> bool:
        """Resume a parked request; False if the key is unknown."""
        if key in self._parked:
            self._jobs[key] = self._parked.pop(key)
        return key in self._jobs

    def halt(self, key: int) -> list[RequestUpdate]:
        """End a request early; empty if the key is unknown."""
        job = self._jobs.pop(key, None) or self._parked.pop(key, None)
        return [] if job is None else [self._ended(job, None)]

    def step(self, *, writes: bool) -> list[RequestUpdate]:
        """Compute one batch of the next request that does not yield; returns its progress, and its end after the last.

        Empty if all yield while the engine `writes` answers.
        """
        key = next((key for key in self._jobs if not (writes and key in self._yielding)), None)
        if key is None:
            return []
        job = self._jobs.pop(key)
        started = self._clock()
        try:
            tokens = job.add(*next(job.batches))
        except RuntimeError:
            return [self._ended(job, "embedder")]
        finally:
            self._owed = self._clock() - started
        self.counters["text_tokens"] += tokens
        if len(job.vectors) < len(job.inputs):
            self._jobs[key] = job
            return [RequestUpdate(key, NO_SEQUENCE, "", 0, job.computed, computed=tokens)]
        return [self._ended(job, None, tokens)]

    def _ended(self, job: _Job, fault: Fault | None, computed: int = 0) -> RequestUpdate:
        complete = len(job.vectors) == len(job.inputs)
        tokens = sum(map(len, job.inputs))
        end = End(
            reason="stop" if complete else None,
            stop=None,
            usage=Usage(tokens, 0, 0),
            prefill_ms=(self._clock() - job.started) * 1000,
            decode_ms=0.0,
            fault=fault,
        )
        vectors = [packed_vector(job.vectors[index]) for index in range(len(job.inputs))] if complete else []
        extra = Extra(vectors=vectors) if complete else None
        return RequestUpdate(job.frame.key, NO_SEQUENCE, "", 0, job.computed, extra, end, computed=computed)


def split(tokens: bytes, lengths: list[int]) -> list[list[int]]:
    """Return the token lists of several texts, which follow each other as int32 values."""
    values = tokens_of(tokens)
    texts, start = [], 0
    for length in lengths:
        texts.append(values[start : start + length])
        start += length
    return texts
