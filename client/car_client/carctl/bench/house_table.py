"""The figures of a house as lines of a table and as the bars of a picture."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from car_client.carctl.bench.house_figures import HouseFigures, Kept
from car_client.carctl.terminal.text import duration, rate

if TYPE_CHECKING:
    from car_client.carctl.bench.bar_picture import Bar

TITLE = "What each app keeps of its speed when all are there: the bar is the median, the mark p95"


def table(found: HouseFigures, left_out: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a server."""
    column = max(12, len(found.server) + 2)
    yield _line(
        column, found.server, "waits for", "alone p50", "p95", "together", "p95", "keeps", "p95", "silence", "lost"
    )
    for each in found.apps:
        alone, together = each.alone.waits, each.together.waits
        waits = [_in_ms(ms) for ms in (alone.p50, alone.p95, together.p50, together.p95)]
        parts = [f"{part:.0%}" for part in (each.p50, each.p95)]
        yield _line(
            column, each.app, each.waits_for, *waits, *parts, _in_ms(each.together.silences.p95), f"{_failed(each)}"
        )
    for app, reason in left_out.items():
        yield f"{app} is left out: {reason}"
    for each in found.apps:
        if superseded := each.together.outcomes["superseded"]:
            of = sum(each.together.outcomes.values())
            yield f"{each.app}: {superseded} of {of} requests together were superseded before their answer ended"
    computed = f"{found.computed_by_new:.2f} prompt tokens computed for a new one, " if found.computed_by_new else ""
    yield f"together: {computed}{rate(found.tokens_per_s)} tokens/s; the generator took {found.own_cpu:.0%} of a core"


def bars(found: Sequence[HouseFigures]) -> list[tuple[str, list["Bar"]]]:
    """Return the bars of each app, one a server."""
    from car_client.carctl.bench.bar_picture import Bar

    groups: dict[str, list[Bar]] = {}
    for figures in found:
        for each in figures.apps:
            failed = f", {_failed(each)} lost" if _failed(each) else ""
            text = f"{each.p50:.0%}: {_in_ms(each.alone.waits.p50)}, together {_in_ms(each.together.waits.p50)}{failed}"
            groups.setdefault(f"{each.app} ({each.waits_for})", []).append(
                Bar(figures.server, each.p50, text, each.p95)
            )
    return list(groups.items())


def _failed(each: Kept) -> int:
    return each.alone.failed + each.together.failed


def _in_ms(milliseconds: float | None) -> str:
    return "never" if milliseconds is None else duration(milliseconds / 1000)


def _line(column: int, *cells: str) -> str:
    app, waits_for, alone, *more = cells
    widths = (8, 10, 8, 7, 6, 9, 5)
    return f"{app:<{column}}{waits_for:<12}{alone:>9}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(more, widths, strict=True)
    )
