"""The tables of a status: engines, running requests and clients; the status as plain lines."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from car_client.carctl.terminal.text import (
    WIDTH,
    Measure,
    Span,
    bytes_text,
    clipped,
    duration,
    one_line,
    rate,
    shortened,
)
from car_client.carctl.view.status_figures import LABEL_WIDTH, PHASE_STYLES, STATE_STYLES, address, figures, title
from car_client.results import ConnectionStatus, ModelStatus, Status

_GAP = 2
_LEFT = frozenset(
    {"model", "person", "app", "day", "state", "device", "running", "client", "clients", "phase", "request"}
)


class Listing:
    """Rows of cells; if the width does not suffice, whole columns are left out, the first of `spare` first."""

    def __init__(self, *headings: str, spare: Sequence[str]) -> None:
        self._headings = headings
        self._spare = spare
        self._rows: list[tuple[list[Span], str]] = []  # cells, and the style of the whole row

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *cells: Span, style: str = "") -> None:
        """Add a row; missing cells at its end are empty."""
        missing = len(self._headings) - len(cells)
        shown = [Span(one_line(cell.text), cell.style) for cell in cells]
        self._rows.append(([*shown, *[Span("")] * missing], style))

    def lines(self, width: int, measure: Measure) -> Iterator[list[Span]]:
        """Yield the headings and the rows; `measure` returns the columns of the terminal that a text takes."""
        headings = [Span(heading, "dim") for heading in self._headings]
        widths = [
            max(measure(row[place].text) for row in (headings, *(cells for cells, _ in self._rows)))
            for place in range(len(headings))
        ]
        shown = self._fitting(widths, width)
        for cells, style in ((headings, ""), *self._rows):
            line: list[Span] = []
            for place in shown:
                cell, gap = cells[place], " " * _GAP if line else ""
                padding = " " * (widths[place] - measure(cell.text))
                text = cell.text + padding if self._headings[place] in _LEFT else padding + cell.text
                line.append(Span(gap + text, f"{cell.style} {style}".strip()))
            yield line

    def _fitting(self, widths: Sequence[int], width: int) -> list[int]:
        shown = list(range(len(self._headings)))
        for heading in self._spare:
            if sum(widths[place] + _GAP for place in shown) - _GAP <= width:
                break
            shown.remove(self._headings.index(heading))
        return shown


_FEWEST_ROWS = 2
_MOST_ROWS = 5  # of clients


class ClientRow(NamedTuple):
    """The connections that share a label or, without one, a process."""

    name: str
    connections: int
    in_flight: int
    tokens_served: int


def engines_table(models: Iterable[ModelStatus], width: int) -> Listing:
    """Return the models with their engines; names are shortened to a sixth of the width."""
    listing = Listing(
        *("model", "state", "device", "sequences", "decode", "prefill", "memory", "restarts"),
        spare=("restarts", "prefill", "device", "memory", "sequences", "state"),
    )
    for model in models:
        name = Span(shortened(model.name, width // 6), "bold" if model.default else "")
        state = Span(model.state, STATE_STYLES.get(model.state, "dim"))
        for engine in model.engines:
            listing.add(
                name,
                state,
                Span(engine.device),
                Span(str(engine.sequences)),
                Span(f"{rate(engine.decode_tokens_per_s)}/s"),
                Span(f"{rate(engine.prefill_tokens_per_s)}/s"),
                Span(bytes_text(engine.rss_bytes)),
                Span(str(engine.restarts), "red" if engine.restarts else "dim"),
            )
        if not model.engines:
            listing.add(name, state)
    return listing


def sequences_table(status: Status, rows: int | None = None) -> Listing:
    """Return the running requests, the oldest first; beyond `rows` and for other users the last row has counts."""
    listing = Listing(
        "running", "client", "phase", "prompt", "done", "age", spare=("prompt", "running", "phase", "age")
    )
    oldest_first = sorted(status.sequences, key=lambda sequence: -sequence.age_ms)
    of_others = status.others.sequences if status.others else 0
    if rows is not None and len(oldest_first) + bool(of_others) > rows:
        shown = oldest_first[: max(_FEWEST_ROWS, rows) - 1]
    else:
        shown = oldest_first
    for sequence in shown:
        listing.add(
            Span(shortened(sequence.model, 16)),
            Span(shortened(sequence.caller or f"connection {sequence.connection}", 20)),
            Span(sequence.phase, PHASE_STYLES[sequence.phase]),
            Span(f"{sequence.prompt_tokens:,}"),
            Span(f"{sequence.done_tokens:,}"),
            Span(duration(sequence.age_ms / 1000)),
        )
    counts = {"and {} more": len(oldest_first) - len(shown), "{} of other users": of_others}
    if rest := ", ".join(text.format(count) for text, count in counts.items() if count):
        listing.add(Span(""), Span(rest, "dim"))
    elif not shown:
        listing.add(Span("nothing", "dim"))
    return listing


def callers(connections: Sequence[ConnectionStatus]) -> list[ClientRow]:
    """Return the other clients, the busiest first."""
    groups: dict[str, list[ConnectionStatus]] = {}
    for each in connections:
        if each.pid != os.getpid():
            groups.setdefault(each.caller or f"pid {each.pid}", []).append(each)
    found = [
        ClientRow(name, len(group), sum(each.in_flight for each in group), sum(each.tokens_served for each in group))
        for name, group in groups.items()
    ]
    return sorted(found, key=lambda caller: (-caller.in_flight, -caller.tokens_served, caller.name))


def callers_table(status: Status, rows: int = _MOST_ROWS) -> Listing:
    """Return five rows at most: the busiest clients, and the sums over the clients that the status omits."""
    listing = Listing("clients", "connections", "in flight", "tokens", spare=("connections", "tokens"))
    sums = list(_sums(status))
    for caller in callers(status.connections)[: max(1, min(rows, _MOST_ROWS) - len(sums))]:
        listing.add(
            Span(shortened(caller.name, 24)),
            Span(str(caller.connections)),
            Span(str(caller.in_flight)),
            Span(f"{caller.tokens_served:,}"),
        )
    for cells in sums:
        listing.add(*(Span(cell, "dim") for cell in cells))
    return listing


def _sums(status: Status) -> Iterator[tuple[str, ...]]:
    if (more := status.more_connections) is not None:
        yield "more", str(more.connections), str(more.in_flight), f"{more.tokens_served:,}"
    if (others := status.others) is not None and others.connections:
        yield "other users", str(others.connections), str(others.in_flight)


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
