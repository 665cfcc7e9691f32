"""The tables of the pictures."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from car_client.carctl.bars import MARKS
from car_client.carctl.figures import Caller, bytes_text, duration, rate
from car_client.carctl.listing import Listing
from car_client.carctl.terminal import one_line
from car_protocol.status import EngineStatus, ModelStatus, SequenceStatus

STATES = {"ready": "green", "serving": "green", "loading": "yellow", "draining": "yellow", "failed": "red"}
_FEWEST_ROWS = 2


def engines_table(models: Iterable[ModelStatus], width: int) -> Table:
    """Return the models with their engines."""
    listed = Listing(
        *("model", "state", "device", "sequences", "decode", "prefill", "memory", "restarts"),
        spare=("restarts", "prefill", "device", "memory", "sequences", "state"),
    )
    for model in models:
        name = Text(one_line(model.name), "bold" if model.default else "")
        name.truncate(width // 6, overflow="ellipsis")
        state = Text(model.state, STATES.get(model.state, "dim"))
        for engine in model.engines:
            listed.add(name, state, *_engine_row(engine))
        if not model.engines:
            listed.add(name, state)
    return listed.table(width)


def _engine_row(engine: EngineStatus) -> Iterator[Text]:
    yield Text(one_line(engine.device))
    yield Text(str(engine.sequences))
    yield Text(f"{rate(engine.decode_tokens_per_s)}/s")
    yield Text(f"{rate(engine.prefill_tokens_per_s)}/s")
    yield Text(bytes_text(engine.rss_bytes))
    yield Text(str(engine.restarts), "red" if engine.restarts else "dim")


def sequences_table(sequences: Sequence[SequenceStatus], rows: int, width: int) -> Table:
    """Return what runs, the oldest first, in about so many rows."""
    listed = Listing("running", "client", "phase", "prompt", "done", "age", spare=("prompt", "running", "phase", "age"))
    oldest_first = sorted(sequences, key=lambda sequence: -sequence.age_ms)
    shown = oldest_first if len(oldest_first) <= rows else oldest_first[: max(_FEWEST_ROWS, rows) - 1]
    for each in shown:
        listed.add(*_sequence(each))
    if len(sequences) > len(shown):
        listed.add(Text(), Text(f"and {len(sequences) - len(shown)} more", "dim"))
    if not sequences:
        listed.add(Text("nothing", "dim"))
    return listed.table(width)


def _sequence(running: SequenceStatus) -> Iterator[Text]:
    yield Text(one_line(running.model)[:16])
    yield Text(one_line(running.client or f"connection {running.connection}")[:20])
    yield Text(running.phase, MARKS[running.phase][1])
    yield Text(f"{running.prompt_tokens:,}")
    yield Text(f"{running.done_tokens:,}")
    yield Text(duration(running.age_ms / 1000))


def callers_table(found: Iterable[Caller], width: int) -> Table:
    """Return who is connected."""
    listed = Listing("clients", "connections", "in flight", "tokens", spare=("connections", "tokens"))
    for each in found:
        name = Text(one_line(each.name)[:24])
        listed.add(name, Text(str(each.connections)), Text(str(each.in_flight)), Text(f"{each.tokens_served:,}"))
    return listed.table(width)
