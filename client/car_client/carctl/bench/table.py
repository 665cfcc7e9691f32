"""The rounds of `carctl bench` as lines of a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from car_client.carctl.bench.figures import Figures, Spread
from car_client.carctl.bench.rounds import LoadRound
from car_client.carctl.terminal.text import duration, rate

if TYPE_CHECKING:
    from car_client.carctl.bench.bar_picture import Bar

TITLE = "Tokens per second of all answers together; medians of the times to the first token and between tokens"


def heading() -> str:
    """Return the line of headings."""
    return _line("at once", "", "tokens/s", ["first p50", "p95", "p99", "between p50", "p95", "p99"])


def lines(each: LoadRound) -> list[str]:
    """Return the line of the daemon; in a comparison also a line of the other server and a line of the ratios."""
    name = f"{each.rate:g}/s" if each.rate is not None else str(each.at_once)
    if each.other is None or each.ratios is None:
        return [_figures(name, "", each.card)]
    ratios = each.ratios
    times = [f"{value:.2f} x" for spread in (ratios.ttft_ms, ratios.itl_ms) for value in _shown(spread)]
    last = _line("", "ratio", f"{ratios.tokens_per_s:.2f} x", times)
    return [_figures(name, "card", each.card), _figures("", "other", each.other), last]


def footer(found: Sequence[LoadRound]) -> str:
    """Return a line with the processor time of the load generator."""
    measured = [figures for each in found for figures in (each.card, each.other) if figures is not None]
    most = max(figures.own_cpu for figures in measured)
    return f"the load generator took {most:.0%} of one core at most"


def bars(found: Sequence[LoadRound]) -> list[tuple[str, list["Bar"]]]:
    """Return the bars of each round, one a server: its throughput, by the most of all."""
    from car_client.carctl.bench.bar_picture import Bar

    most = max(figures.tokens_per_s for each in found for figures in (each.card, each.other) if figures) or 1.0
    return [
        (
            f"{each.rate:g} a second" if each.rate is not None else f"{each.at_once} at once",
            [
                Bar(server, figures.tokens_per_s / most, _in_words(figures))
                for server, figures in (("card", each.card), ("other", each.other))
                if figures is not None
            ],
        )
        for each in found
    ]


def _in_words(figures: Figures) -> str:
    first, gap = (duration(spread.p50 / 1000) for spread in (figures.ttft_ms, figures.itl_ms))
    return f"{rate(figures.tokens_per_s)}/s, first {first}, between {gap}"


def _figures(name: str, server: str, figures: Figures) -> str:
    times = [duration(value / 1000) for spread in (figures.ttft_ms, figures.itl_ms) for value in _shown(spread)]
    return _line(name, server, rate(figures.tokens_per_s), times)


def _shown(spread: Spread) -> tuple[float, float, float]:
    return spread.p50, spread.p95, spread.p99


def _line(name: str, server: str, tokens: str, times: Sequence[str]) -> str:
    first, between = times[:3], times[3:]
    return (
        f"{name:<8}{server:<6}{tokens:>9}{first[0]:>11}{first[1]:>8}{first[2]:>8}"
        f"{between[0]:>13}{between[1]:>8}{between[2]:>8}"
    )
