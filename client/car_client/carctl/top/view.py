"""The picture of `carctl top`."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from car_client.carctl.terminal.text import Span, duration, one_line, rate, shortened
from car_client.carctl.top.state import ORDERS, TopState, app_of, groups, key_of
from car_client.carctl.view.picture import fitted, head, short_head, table_lines
from car_client.carctl.view.status_figures import PHASE_STYLES
from car_client.carctl.view.status_tables import Listing
from car_client.results import SequenceStatus, Status, WaitingStatus
from car_protocol.status import Awaited

# Lines for the headings and the bottom line.
_AROUND = 2
_FEWEST_ROWS = 3
_AWAITED: dict[Awaited, str] = {
    "place": "full queue",
    "engine": "its engine",
    "prompt": "its prompt",
    "sequence": "a sequence",
    "turn": "its turn",
    "reader": "its reader",
}
_KEYS = "q quit  ↑↓ choose  c cancel  sort by " + "  ".join(f"{key} {order.name}" for key, order in ORDERS.items())


def view(state: TopState, status: Status, width: int, height: int) -> RenderableType:
    """Return the whole screen."""
    top = [*head(status, width), Text()]
    if height < len(top) + _FEWEST_ROWS + _AROUND:
        top = short_head(status, width)
    of_others = status.others.sequences if status.others else 0
    room = max(1, height - len(top) - _AROUND - bool(of_others))
    rows = list(_by_app(state.rows, status.waiting))
    # As many rows as fit, the chosen one among them.
    place = rows.index(state.chosen) if state.chosen else 0
    start = max(0, place - room + 1)
    shown = rows[start : start + room]
    requests = Listing(
        *("client", "request", "model", "phase", "prompt", "done", "tokens/s", "age"),
        spare=("model", "prompt", "age", "phase", "done"),
    )
    for row in shown:
        app, model = Span(shortened(app_of(row), 20)), Span(shortened(row.model, 14))
        if isinstance(row, WaitingStatus):
            waits = Span(f"{row.requests} wait" + "s" * (row.requests == 1))
            empty = [Span("")] * 3
            requests.add(
                app, waits, model, Span(_AWAITED[row.awaits]), *empty, Span(duration(row.oldest_ms / 1000)), style="dim"
            )
            continue
        requests.add(
            app,
            Span(shortened(f"{row.connection}:{'?' if row.id is None else row.id}", 12)),
            model,
            Span(row.phase, "" if row is state.chosen else PHASE_STYLES[row.phase]),
            Span(f"{row.prompt_tokens:,}"),
            Span(f"{row.done_tokens:,}"),
            Span(rate(state.rates[key_of(row)]) if key_of(row) in state.rates else ""),
            Span(duration(row.age_ms / 1000)),
            style="reverse" if row is state.chosen else "",
        )
    if of_others:
        requests.add(Span(f"{of_others} of other users", "dim"))
    elif not shown:
        requests.add(Span("nothing runs", "dim"))
    gap = [Text()] * (room - max(not of_others, len(shown)))
    return Group(*top, *table_lines(requests, width), *gap, fitted(_bottom(state), width))


def _by_app(
    running: Iterable[SequenceStatus], waiting: Iterable[WaitingStatus]
) -> Iterator[SequenceStatus | WaitingStatus]:
    """Yield the running requests of each app, then its waiting requests; an app that runs nothing comes last."""
    waits = groups(waiting)
    for app, rows in groups(running).items():
        yield from rows
        yield from waits.pop(app, [])
    yield from (row for rows in waits.values() for row in rows)


def _bottom(state: TopState) -> Text:
    if state.confirming and state.chosen:
        return Text(f"cancel request {state.chosen.connection}:{state.chosen.id}? y, any other key keeps it", "bold")
    return Text(one_line(state.message), "bold") if state.message else Text(_KEYS, "dim")
