"""The tables of the pictures."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from car_client.carctl.bars import MARKS
from car_client.carctl.figures import Caller, bytes_text, duration, rate
from car_client.carctl.terminal import one_line
from car_protocol.status import EngineStatus, ModelStatus, SequenceStatus

STATES = {"ready": "green", "serving": "green", "loading": "yellow", "draining": "yellow", "failed": "red"}
_LEFT = frozenset({"model", "state", "device", "running", "client", "clients", "phase", "request"})
_FEWEST_ROWS = 2


def table(*headings: str) -> Table:
    """Return an empty table; figures stand to the right."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        made.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
    return made


def engines_table(models: Iterable[ModelStatus], width: int) -> Table:
    """Return the models with their engines."""
    listed = table("model", "state", "device", "sequences", "decode", "prefill", "memory", "restarts")
    for model in models:
        name = Text(one_line(model.name), "bold" if model.default else "")
        name.truncate(width // 6, overflow="ellipsis")
        state = Text(model.state, STATES.get(model.state, "dim"))
        for engine in model.engines:
            listed.add_row(name, state, *_engine_row(engine))
        if not model.engines:
            listed.add_row(name, state)
    return listed


def _engine_row(engine: EngineStatus) -> Iterator[Text]:
    yield Text(one_line(engine.device))
    yield Text(str(engine.sequences))
    yield Text(f"{rate(engine.decode_tokens_per_s)}/s")
    yield Text(f"{rate(engine.prefill_tokens_per_s)}/s")
    yield Text(bytes_text(engine.rss_bytes))
    yield Text(str(engine.restarts), "red" if engine.restarts else "dim")


def sequences_table(sequences: Sequence[SequenceStatus], rows: int) -> Table:
    """Return what runs, the oldest first, in about so many rows."""
    listed = table("running", "client", "phase", "prompt", "done", "age")
    oldest_first = sorted(sequences, key=lambda sequence: -sequence.age_ms)
    shown = oldest_first if len(oldest_first) <= rows else oldest_first[: max(_FEWEST_ROWS, rows) - 1]
    for each in shown:
        listed.add_row(*_sequence(each))
    if len(sequences) > len(shown):
        listed.add_row("", Text(f"and {len(sequences) - len(shown)} more", "dim"))
    if not sequences:
        listed.add_row(Text("nothing", "dim"))
    return listed


def _sequence(running: SequenceStatus) -> Iterator[Text]:
    yield Text(one_line(running.model)[:16])
    yield Text(one_line(running.client or f"connection {running.connection}")[:20])
    yield Text(running.phase, MARKS[running.phase][1])
    yield Text(f"{running.prompt_tokens:,}")
    yield Text(f"{running.done_tokens:,}")
    yield Text(duration(running.age_ms / 1000))


def callers_table(found: Sequence[Caller]) -> Table:
    """Return who is connected."""
    listed = table("clients", "connections", "in flight", "tokens")
    for each in found:
        name = Text(one_line(each.name)[:24])
        listed.add_row(name, Text(str(each.connections)), Text(str(each.in_flight)), Text(f"{each.tokens_served:,}"))
    return listed
