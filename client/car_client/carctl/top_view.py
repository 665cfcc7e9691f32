"""The picture of `carctl top`."""

from collections.abc import Iterator

from msgspec import UNSET
from rich.console import Group, RenderableType
from rich.text import Text

from car_client.carctl.bars import MARKS
from car_client.carctl.figures import duration, rate
from car_client.carctl.listing import Listing
from car_client.carctl.picture import fitted, head, short_head
from car_client.carctl.terminal import one_line
from car_client.carctl.top_state import ORDERS, TopState, key_of
from car_protocol.status import SequenceStatus, Status

# The heading of the table, and the line at the bottom.
_AROUND = 2
_FEWEST_ROWS = 3
_KEYS = "q quit  ↑↓ choose  c cancel  sort by " + "  ".join(f"{key} {order.name}" for key, order in ORDERS.items())


def view(state: TopState, status: Status, width: int, height: int) -> RenderableType:
    """Return the whole screen."""
    top = [*head(status, width), Text()]
    if height < len(top) + _FEWEST_ROWS + _AROUND:
        top = short_head(status, width)
    room = max(1, height - len(top) - _AROUND)
    shown = list(_shown(state, room))
    requests = Listing(
        *("client", "request", "model", "phase", "prompt", "done", "tokens/s", "age"),
        spare=("model", "prompt", "age", "phase", "done"),
    )
    for row in shown:
        requests.add(*_row(state, row), style="reverse" if row is state.chosen else "")
    if not shown:
        requests.add(Text("nothing runs", "dim"))
    gap = [Text()] * (room - max(1, len(shown)))
    return Group(*top, requests.table(width), *gap, fitted(_bottom(state), width))


def _shown(state: TopState, room: int) -> Iterator[SequenceStatus]:
    """Yield the rows for which there is room, so that the chosen one is among them."""
    place = state.rows.index(state.chosen) if state.chosen else 0
    start = max(0, place - room + 1)
    yield from state.rows[start : start + room]


def _row(state: TopState, row: SequenceStatus) -> Iterator[Text]:
    yield Text(one_line(row.client or f"connection {row.connection}")[:20])
    yield Text(one_line(f"{row.connection}:{'?' if row.id is UNSET else row.id}")[:12])
    yield Text(one_line(row.model)[:14])
    yield Text(row.phase, "" if row is state.chosen else MARKS[row.phase][1])
    yield Text(f"{row.prompt_tokens:,}")
    yield Text(f"{row.done_tokens:,}")
    yield Text(rate(state.rates[key_of(row)]) if key_of(row) in state.rates else "")
    yield Text(duration(row.age_ms / 1000))


def _bottom(state: TopState) -> Text:
    if state.confirming and state.chosen:
        return Text(f"cancel request {state.chosen.connection}:{state.chosen.id}? y, any other key keeps it", "bold")
    return Text(one_line(state.message), "bold") if state.message else Text(_KEYS, "dim")
