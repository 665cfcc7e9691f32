"""The picture of `carctl top`."""

from rich.console import Group, RenderableType
from rich.text import Text

from car_client.carctl.terminal.text import Span, one_line, shortened
from car_client.carctl.terminal.units import duration, rate
from car_client.carctl.top.state import ORDERS, TopState, key_of
from car_client.carctl.view.listing import Listing
from car_client.carctl.view.picture import fitted, head, short_head, table_lines
from car_client.carctl.view.status_figures import PHASE_STYLES
from car_client.results import Status

# Lines for the headings and the bottom line.
_AROUND = 2
_FEWEST_ROWS = 3
_KEYS = "q quit  ↑↓ choose  c cancel  sort by " + "  ".join(f"{key} {order.name}" for key, order in ORDERS.items())


def view(state: TopState, status: Status, width: int, height: int) -> RenderableType:
    """Return the whole screen."""
    top = [*head(status, width), Text()]
    if height < len(top) + _FEWEST_ROWS + _AROUND:
        top = short_head(status, width)
    of_others = status.others.sequences if status.others else 0
    room = max(1, height - len(top) - _AROUND - bool(of_others))
    # As many rows as fit, the chosen one among them.
    place = state.rows.index(state.chosen) if state.chosen else 0
    start = max(0, place - room + 1)
    shown = state.rows[start : start + room]
    requests = Listing(
        *("client", "request", "model", "phase", "prompt", "done", "tokens/s", "age"),
        spare=("model", "prompt", "age", "phase", "done"),
    )
    for row in shown:
        requests.add(
            Span(shortened(row.caller or f"connection {row.connection}", 20)),
            Span(shortened(f"{row.connection}:{'?' if row.id is None else row.id}", 12)),
            Span(shortened(row.model, 14)),
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


def _bottom(state: TopState) -> Text:
    if state.confirming and state.chosen:
        return Text(f"cancel request {state.chosen.connection}:{state.chosen.id}? y, any other key keeps it", "bold")
    return Text(one_line(state.message), "bold") if state.message else Text(_KEYS, "dim")
