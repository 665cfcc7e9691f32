"""What a load measured."""

from collections.abc import Sequence

from msgspec import Struct

from car_client.carctl.load.percentile import percentile
from car_client.carctl.load.timed import Timed


class Spread(Struct, frozen=True):
    """Percentiles of times in milliseconds, and the longest."""

    p50: float
    p95: float
    p99: float
    max: float


class Figures(Struct, frozen=True):
    """Tokens a second of all answers together, times to the first token and between tokens.

    `requests` were answered; `own_cpu` is the share of one core that asking took.
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


def summary(answers: Sequence[Timed], begin: float, end: float, own_cpu: float) -> Figures:
    """Return the figures of what came between two moments; answers that were asked for within count for times."""
    asked = [each for each in answers if begin <= each.asked <= end]
    prompts = [each.prompt_tokens for each in asked if each.prompt_tokens is not None]
    return Figures(
        len(asked),
        sum(each.tokens_within(begin, end) for each in answers) / (end - begin),
        spread([each.first_ms for each in asked]),
        spread([gap for each in asked for gap in each.gaps_ms]),
        sum(prompts) / len(prompts) if prompts else None,
        own_cpu,
    )
