"""The figures of a load, from its timed answers."""

from collections.abc import Sequence

from msgspec import Struct

from car_client.carctl.load.percentile import percentile
from car_client.carctl.load.timed_answer import TimedAnswer


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


def spread(values: Sequence[float]) -> Spread:
    """Return the percentiles of values in any order."""
    ordered = sorted(values)
    return Spread(*(percentile(ordered, percent) for percent in (50, 95, 99, 100)))


def summary(answers: Sequence[TimedAnswer], begin: float, end: float, own_cpu: float) -> Figures:
    """Return the figures between two times; latencies are those of the requests that were sent between them."""
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
