"""The status as a picture for terminals; the one module beside `top` that needs rich."""

from collections.abc import Iterator, Sequence

from msgspec import UNSET
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from car_client.carctl.bars import MARKS, gauge, sequence_bar
from car_client.carctl.figures import bytes_text, callers, duration, engines, load, rate
from car_client.carctl.tables import STATES, callers_table, engines_table, sequences_table
from car_client.carctl.terminal import one_line
from car_protocol.status import EngineStatus, Memory, Status, Totals

_LABEL = 10
# Columns that the figures beside a bar need.
_BESIDE_BAR = 46
_LONGEST_BAR = 64
# Two tables stand side by side from this width on.
_WIDE = 120
_CALLERS = 5
_FEWEST_ROWS = 2
# Less of the socket's path than that says nothing.
_FEWEST_COLUMNS = 20
_PRESSURES = {"none": "", "some": "yellow", "critical": "bold red"}


def console() -> Console:
    """Return the console on standard output; no text drives it, and colour goes by the terminal and NO_COLOR."""
    return Console(markup=False, highlight=False, emoji=False)


def show(status: Status) -> None:
    """Print the picture."""
    screen = console()
    screen.print(picture(status, screen.width, screen.height))


def picture(status: Status, width: int, height: int) -> RenderableType:
    """Return the status for a terminal of this size; the tables give way where it is low."""
    top = [*head(status, width), Text()]
    listed = engines_table(status.models, width)
    # One line is left for the shell's prompt.
    room = height - len(top) - 1 - listed.row_count - 1
    return Group(*top, listed, *_tables(status, width, room))


def head(status: Status, width: int) -> list[RenderableType]:
    """Return the lines above the tables."""
    figures = _figures(status, width)
    return [_title(status, width), Text(), *(_row(label, line, width) for label, line in figures.items())]


def short_head(status: Status, width: int) -> list[RenderableType]:
    """Return the lines that count most, for a terminal that is too low for all."""
    return [
        _title(status, width),
        _row("capacity", _capacity(status, width), width),
        _row("queue", _queue(status, width), width),
    ]


def fitted(line: Text, width: int) -> Text:
    """Return one line that is no wider."""
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line


def _title(status: Status, width: int) -> RenderableType:
    left = Text.assemble(
        (f"card {status.version} ", "bold"),
        (status.state, STATES[status.state]),
        f"  up {duration(status.uptime_s)}",
    )
    right = Text(f"{one_line(status.socket)}  pid {status.pid}", "dim", no_wrap=True)
    room = width - left.cell_len - 2
    if room < _FEWEST_COLUMNS:
        return fitted(left, width)
    right.truncate(room, overflow="ellipsis")
    return left.append(" " * (width - left.cell_len - right.cell_len)).append_text(right)


def _figures(status: Status, width: int) -> dict[str, Text]:
    running = engines(status)
    return {
        "model": _model_line(status),
        "capacity": _capacity(status, width),
        "queue": _queue(status, width),
        "memory": _memory(status.memory, width),
        "speed": _speed(running),
        "cache": _cache(running),
        "requests": _requests(status.totals),
    }


def _model_line(status: Status) -> Text:
    capacity = status.capacity
    policy = f" ({capacity.policy})" if capacity.policy else ""
    context = f" of {capacity.context_tokens:,} tokens" if capacity.context_tokens else ""
    line = Text.assemble(
        (one_line(capacity.model), "bold"),
        "  ",
        (capacity.state, STATES.get(capacity.state, "")),
        f"  {capacity.capacity} at once{policy}{context}",
    )
    return line if capacity.reason is UNSET else line.append(f"  {one_line(capacity.reason)}", "red")


def _capacity(status: Status, width: int) -> Text:
    now = load(status.capacity, status.sequences)
    line = sequence_bar(now, _bar_width(width))
    line.append("  ")
    shown = [(name, figure) for name, figure in now._asdict().items() if figure or name == "free"]
    for place, (name, figure) in enumerate(shown):
        line.append(f"{' ' if place else ''}{figure} {name}", MARKS[name][1])
    return line


def _queue(status: Status, width: int) -> Text:
    queue, limit = status.queue, status.capacity.queue_limit
    waiting = queue.latency_critical + queue.throughput
    line = gauge(waiting, limit, _bar_width(width), "yellow" if queue.healthy else "bold red")
    if not waiting:
        return line.append(f"  nothing waits, room for {limit}", "dim")
    line.append(f"  {waiting} of {limit}")
    if queue.throughput:
        line.append(f" ({queue.latency_critical} urgent, {queue.throughput} other)")
    return line.append(f", oldest {duration(queue.oldest_wait_ms / 1000)}")


def _memory(memory: Memory, width: int) -> Text:
    used = memory.total - memory.available
    line = gauge(used, memory.total, _bar_width(width), _PRESSURES[memory.pressure] or "blue")
    line.append(f"  {bytes_text(used)} of {bytes_text(memory.total)} used")
    if memory.pressure != "none":
        line.append(f", pressure {memory.pressure}", _PRESSURES[memory.pressure])
    return line


def _speed(running: Sequence[EngineStatus]) -> Text:
    return _pairs(
        (rate(sum(each.decode_tokens_per_s for each in running)), "tokens/s decode"),
        (rate(sum(each.prefill_tokens_per_s for each in running)), "tokens/s prefill"),
    )


def _cache(running: Sequence[EngineStatus]) -> Text:
    return _pairs(
        (f"{sum(each.cache_hits for each in running):,}", "hits"),
        (f"{sum(each.cached_tokens for each in running):,}", "prompt tokens saved"),
    )


def _requests(totals: Totals) -> Text:
    shown = {"in flight": totals.in_flight, "completed": totals.completed}
    bad = {"failed": totals.failed, "cancelled": totals.cancelled, "rejected": totals.rejected}
    shown |= {name: figure for name, figure in bad.items() if figure}
    return _pairs(*((f"{figure:,}", name) for name, figure in shown.items()))


def _bar_width(width: int) -> int:
    return max(8, min(_LONGEST_BAR, width - _LABEL - _BESIDE_BAR))


def _row(label: str, value: Text, width: int) -> Text:
    return fitted(Text.assemble((f"{label:<{_LABEL}}", "dim"), value), width)


def _pairs(*pairs: tuple[str, str]) -> Text:
    line = Text()
    for place, (figure, name) in enumerate(pairs):
        line.append("   " if place else "").append(figure, "bold").append(f" {name}")
    return line


def _tables(status: Status, width: int, room: int) -> Iterator[RenderableType]:
    found = callers(status.connections)[:_CALLERS]
    if width >= _WIDE:
        side_by_side = Table.grid(padding=(0, 4))
        side_by_side.add_row(sequences_table(status.sequences, room - 2, width), callers_table(found, width))
        yield from (Text(), side_by_side)
        return
    found = found[: max(_FEWEST_ROWS, (room - 4) // 2)]
    yield from (Text(), sequences_table(status.sequences, room - 4 - len(found), width))
    if found:
        yield from (Text(), callers_table(found, width))
