"""The rounds of `carctl bench` as lines for people."""

from collections.abc import Sequence

from car_client.carctl.bench_rounds import Ratios, Round
from car_client.carctl.figures import duration, rate
from car_client.carctl.load.figures import Figures, Spread


def heading() -> str:
    """Return what stands over the columns."""
    return _line("at once", "", "tokens/s", ["first p50", "p95", "p99", "between p50", "p95", "p99"])


def lines(each: Round) -> list[str]:
    """Return a line for the daemon, and where it was compared one for the other and one of ratios."""
    name = f"{each.rate:g}/s" if each.rate is not None else str(each.at_once)
    if each.other is None or each.ratios is None:
        return [_figures(name, "", each.card)]
    return [_figures(name, "card", each.card), _figures("", "other", each.other), _ratios(each.ratios)]


def footer(found: Sequence[Round]) -> str:
    """Return what asking itself cost."""
    measured = [figures for each in found for figures in (each.card, each.other) if figures is not None]
    most = max(figures.own_cpu for figures in measured)
    return f"asking took {most:.0%} of one core at most"


def _figures(name: str, who: str, figures: Figures) -> str:
    times = [duration(value / 1000) for spread in (figures.ttft_ms, figures.itl_ms) for value in _shown(spread)]
    return _line(name, who, rate(figures.tokens_per_s), times)


def _ratios(ratios: Ratios) -> str:
    times = [f"{value:.2f} x" for spread in (ratios.ttft_ms, ratios.itl_ms) for value in _shown(spread)]
    return _line("", "ratio", f"{ratios.tokens_per_s:.2f} x", times)


def _shown(spread: Spread) -> tuple[float, float, float]:
    return spread.p50, spread.p95, spread.p99


def _line(name: str, who: str, tokens: str, times: Sequence[str]) -> str:
    first, between = times[:3], times[3:]
    return (
        f"{name:<8}{who:<6}{tokens:>9}{first[0]:>11}{first[1]:>8}{first[2]:>8}"
        f"{between[0]:>13}{between[1]:>8}{between[2]:>8}"
    )
