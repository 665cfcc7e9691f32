"""The figures of a load, from its timed answers."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct


class TimedAnswer(Struct, frozen=True):
    """The times of sending and of every piece, in seconds of one clock, and the figures at the end of the answer."""

    sent_at: float
    piece_times: list[float]
    tokens: int
    prompt_tokens: int | None = None
    queue_ms: float | None = None
    cached_tokens: int | None = None
    text: str = ""

    @property
    def first_ms(self) -> float:
        """Time to the first piece, in ms."""
        return (self.piece_times[0] - self.sent_at) * 1000

    @property
    def gaps_ms(self) -> list[float]:
        """Times between the pieces, in ms."""
        return [(later - earlier) * 1000 for earlier, later in pairwise(self.piece_times)]

    @property
    def seconds(self) -> float:
        """Time to the last piece, in s."""
        return self.piece_times[-1] - self.sent_at

    def tokens_within(self, begin: float, end: float) -> float:
        """Return the number of tokens between two times, in proportion to the pieces."""
        inside = sum(begin <= moment <= end for moment in self.piece_times)
        return self.tokens * inside / len(self.piece_times)


class Spread(Struct, frozen=True):
    """Percentiles of times in milliseconds, and the longest."""

    p50: float
    p95: float
    p99: float
    max: float


class Figures(Struct, frozen=True):
    """Tokens per second of all answers together, times to the first token and between tokens.

    `requests` counts answers; `own_cpu` is the load generator's own use of one core, from 0 to 1.
    """

    requests: int
    tokens_per_s: float
    ttft_ms: Spread
    itl_ms: Spread
    prompt_tokens: float | None
    own_cpu: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of ascending values, interpolated between the two nearest; 0 without values."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    part = place - below
    return ordered[below] + (ordered[above] - ordered[below]) * part if part else ordered[below]


def spread(values: Sequence[float]) -> Spread:
    """Return the percentiles of values in any order."""
    ordered = sorted(values)
    return Spread(*(percentile(ordered, percent) for percent in (50, 95, 99, 100)))


def summary(answers: Sequence[TimedAnswer], begin: float, end: float, own_cpu: float) -> Figures:
    """Return the figures between two times; latencies belong to the requests that were sent between them."""
    sent = [each for each in answers if begin <= each.sent_at <= end]
    prompts = [each.prompt_tokens for each in sent if each.prompt_tokens is not None]
    return Figures(
        len(sent),
        sum(each.tokens_within(begin, end) for each in answers) / (end - begin),
        spread([each.first_ms for each in sent]),
        spread([gap for each in sent for gap in each.gaps_ms]),
        sum(prompts) / len(prompts) if prompts else None,
        own_cpu,
    )
