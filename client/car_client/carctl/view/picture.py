"""The status as a picture for terminals, drawn with rich; the alternate screen that shows one after the other."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from car_client.carctl.terminal.text import Span, one_line
from car_client.carctl.view.status_figures import (
    LABEL_WIDTH,
    PHASE_STYLES,
    PRESSURE_STYLES,
    SequenceUse,
    address,
    capacity_figures,
    figures,
    load,
    queue_figures,
    title,
)
from car_client.carctl.view.status_tables import Listing, callers_table, engines_table, sequences_table
from car_client.results import Status


def console() -> Console:
    """Return the console on standard output, without markup; colours depend on the terminal and NO_COLOR."""
    return Console(markup=False, highlight=False, emoji=False)


class Screen:
    """The alternate screen."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def width(self) -> int:
        """The terminal's current columns."""
        return self._live.console.width

    @property
    def height(self) -> int:
        """The terminal's current lines."""
        return self._live.console.height

    def show(self, picture: RenderableType) -> None:
        """Draw a picture."""
        self._live.update(picture, refresh=True)


@contextmanager
def screen() -> Iterator[Screen]:
    """Yield the alternate screen; the terminal is restored afterwards."""
    with Live(console=console(), screen=True, auto_refresh=False) as live:
        yield Screen(live)


# The marks differ in shape too, for terminals without colour. A parked request holds no sequence.
_MARKS = {"decode": "█", "prefill": "▓", "other": "▒", "free": "░"}


def sequence_bar(now: SequenceUse, width: int) -> Text:
    """Return a bar with a block for every sequence, or in proportion if there are too many for the width."""
    counts = {name: count for name, count in now._asdict().items() if name in _MARKS}
    total = sum(counts.values())
    bar = Text()
    if total and width // total > 1:
        for name, count in counts.items():
            bar.append((_MARKS[name] * (width // total - 1) + " ") * count, PHASE_STYLES[name])
    else:
        for name, until in zip(counts, accumulate(counts.values()), strict=True):
            columns = round(until * width / (total or 1)) - len(bar)
            bar.append(_MARKS[name] * columns, PHASE_STYLES[name])
    bar.append(" " * (width - len(bar)))
    return bar


def gauge(value: int, whole: int, width: int, style: str) -> Text:
    """Return a line filled by the share of the value in the whole, by one column at least if the value is not 0."""
    filled = min(width, max(round(value * width / whole) if whole else 0, 1 if value else 0))
    return Text.assemble(("━" * filled, style), ("─" * (width - filled), "dim"))


# Columns that the figures beside a bar need.
_BESIDE_BAR = 46
_LONGEST_BAR = 64
_SHORTEST_BAR = 8
# From this width on two tables stand side by side.
_WIDE = 120
_BETWEEN_TABLES = 4
_FEWEST_ROWS = 2
# A shorter end of the socket's path is useless.
_FEWEST_COLUMNS = 20


def picture(status: Status, width: int, height: int) -> RenderableType:
    """Return the status for a terminal of this size; tables are shortened if it is low."""
    top = [*head(status, width), Text()]
    engines = list(table_lines(engines_table(status.models, width), width))
    # One line is left for the shell's prompt.
    room = height - len(top) - len(engines) - 1
    return Group(*top, *engines, *_tables(status, width, room))


def head(status: Status, width: int) -> list[RenderableType]:
    """Return the lines above the tables."""
    bars = _bars(status, width)
    lines = (_figure(label, bars.get(label), spans, width) for label, spans in figures(status).items())
    return [_title(status, width), Text(), *lines]


def short_head(status: Status, width: int) -> list[RenderableType]:
    """Return title, capacity and queue, for a terminal that is too low for all lines."""
    bars = _bars(status, width)
    shown = {"capacity": capacity_figures(status), "queue": queue_figures(status)}
    return [_title(status, width), *(_figure(label, bars[label], spans, width) for label, spans in shown.items())]


def table_lines(listing: Listing, width: int) -> Iterator[Text]:
    """Yield the lines of a table that fits the width."""
    for line in listing.lines(width, cell_len):
        yield fitted(_text(line), width)


def fitted(line: Text, width: int) -> Text:
    """Return one line, cut at the width."""
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line


def _text(spans: Iterable[Span]) -> Text:
    return Text.assemble(*((one_line(span.text), span.style) for span in spans))


def _title(status: Status, width: int) -> RenderableType:
    left, right = _text(title(status)), _text([address(status)])
    room = width - left.cell_len - 2
    if room < _FEWEST_COLUMNS:
        return fitted(left, width)
    right.truncate(room, overflow="ellipsis")
    return left.append(" " * (width - left.cell_len - right.cell_len)).append_text(right)


def _bars(status: Status, width: int) -> dict[str, Text]:
    columns = max(_SHORTEST_BAR, min(_LONGEST_BAR, width - LABEL_WIDTH - _BESIDE_BAR))
    queue, memory = status.queue, status.memory
    waiting, used = queue.latency_critical + queue.throughput, memory.total - memory.available
    limit, style = status.capacity.queue_limit, "yellow" if queue.healthy else "bold red"
    return {
        "capacity": sequence_bar(load(status.capacity, status.sequences), columns),
        "queue": gauge(waiting, limit, columns, style),
        "memory": gauge(used, memory.total, columns, PRESSURE_STYLES[memory.pressure] or "blue"),
    }


def _figure(label: str, bar: Text | None, spans: Iterable[Span], width: int) -> Text:
    line = Text(f"{label:<{LABEL_WIDTH}}", "dim")
    shown = Text.assemble(line, bar, "  ", _text(spans)) if bar else Text.assemble(line, _text(spans))
    return fitted(shown, width)


def _tables(status: Status, width: int, room: int) -> Iterator[RenderableType]:
    if width >= _WIDE:
        requests = table_lines(sequences_table(status, room - 2), width)
        clients = table_lines(callers_table(status), width)
        side_by_side = Table.grid(padding=(0, _BETWEEN_TABLES))
        side_by_side.add_row(Group(*requests), Group(*clients))
        yield from (Text(), side_by_side)
        return
    clients_table = callers_table(status, max(_FEWEST_ROWS, (room - 4) // 2))
    yield from (Text(), *table_lines(sequences_table(status, room - 4 - len(clients_table)), width))
    if len(clients_table):
        yield from (Text(), *table_lines(clients_table, width))
