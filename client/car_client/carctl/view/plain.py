"""The status as plain lines, for pipes and where rich is not installed."""

from collections.abc import Iterable, Iterator

from car_client.carctl.terminal.text import WIDTH, Span, clipped
from car_client.carctl.view.status_figures import LABEL_WIDTH, address, figures, title
from car_client.carctl.view.status_tables import callers_table, engines_table, sequences_table
from car_client.results import Status


def plain_lines(status: Status) -> Iterator[str]:
    """Yield the status line by line, each of at most WIDTH characters."""
    yield _line([*title(status), Span("  "), address(status)])
    yield ""
    for label, spans in figures(status).items():
        yield _line([Span(f"{label:<{LABEL_WIDTH}}"), *spans])
    for table in (
        engines_table(status.models, WIDTH),
        sequences_table(status),
        callers_table(status),
    ):
        if len(table):
            yield ""
            yield from map(_line, table.lines(WIDTH, len))


def _line(spans: Iterable[Span]) -> str:
    return clipped("".join(span.text for span in spans).rstrip())
