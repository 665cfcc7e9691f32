"""The lines above the tables of a status: its title, and its figures under their labels, in words and styles."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from car_client.carctl.terminal.text import Span, bytes_text, duration, rate
from car_client.results import Capacity, SequenceStatus, Status

LABEL_WIDTH = 10
STATE_STYLES = {"ready": "green", "serving": "green", "loading": "yellow", "draining": "yellow", "failed": "red"}
PHASE_STYLES = {"decode": "green", "prefill": "cyan", "other": "magenta", "free": "dim", "parked": "yellow"}
PRESSURE_STYLES = {"none": "", "some": "yellow", "critical": "bold red"}
_GAP = Span("   ")


class SequenceUse(NamedTuple):
    """Sequences of one model by what they do: `other` requests embed, rank or start; parked requests hold none."""

    decode: int
    prefill: int
    other: int
    free: int
    parked: int


def load(capacity: Capacity, sequences: Iterable[SequenceStatus]) -> SequenceUse:
    """Return the load of the model that the capacity is about."""
    phases = [sequence.phase for sequence in sequences if sequence.model == capacity.model]
    decode, prefill = phases.count("decode"), phases.count("prefill")
    other = max(0, capacity.in_use - decode - prefill)
    return SequenceUse(decode, prefill, other, capacity.available, capacity.parked)


def title(status: Status) -> list[Span]:
    """Return the version, the state and the age of the daemon."""
    return [
        Span(f"card {status.version} ", "bold"),
        Span(status.state, STATE_STYLES[status.state]),
        Span(f"  up {duration(status.uptime_s)}"),
    ]


def address(status: Status) -> Span:
    """Return the socket and the process of the daemon."""
    return Span(f"{status.socket}  pid {status.pid}", "dim")


def figures(status: Status) -> dict[str, list[Span]]:
    """Return the figures by their labels."""
    engines, memory = [engine for model in status.models for engine in model.engines], status.memory
    used = [Span(f"{bytes_text(memory.total - memory.available)} of {bytes_text(memory.total)} used")]
    if memory.pressure != "none":
        used.append(Span(f", pressure {memory.pressure}", PRESSURE_STYLES[memory.pressure]))
    decode = sum(engine.decode_tokens_per_s for engine in engines)
    prefill = sum(engine.prefill_tokens_per_s for engine in engines)
    totals = status.totals
    requests = {"in flight": totals.in_flight, "completed": totals.completed}
    bad = {"failed": totals.failed, "cancelled": totals.cancelled, "rejected": totals.rejected}
    requests |= {name: count for name, count in bad.items() if count}
    hits, saved = sum(each.cache_hits for each in engines), sum(each.cached_tokens for each in engines)
    cache = {"hits": f"{hits:,}", "prompt tokens saved": f"{saved:,}"}
    again = sum((Counter(model.read_again) for model in status.models), Counter[str]())
    # The two chief reasons: more would not fit the line.
    cache |= {f"read again ({reason})": f"{count:,}" for reason, count in again.most_common(2)}
    return {
        "model": _model(status.capacity),
        "capacity": capacity_figures(status),
        "queue": queue_figures(status),
        "memory": used,
        "speed": _named({"tokens/s decode": rate(decode), "tokens/s prefill": rate(prefill)}),
        "cache": _named(cache),
        "requests": _named({name: f"{count:,}" for name, count in requests.items()}),
    }


def capacity_figures(status: Status) -> list[Span]:
    """Return the load of the default model."""
    now = load(status.capacity, status.sequences)._asdict()
    spans = [Span(f"{count} {name}", PHASE_STYLES[name]) for name, count in now.items() if count or name == "free"]
    return [each for place, span in enumerate(spans) for each in ([Span(" "), span] if place else [span])]


def queue_figures(status: Status) -> list[Span]:
    """Return the counts and the age of the requests that wait."""
    queue, limit = status.queue, status.capacity.queue_limit
    waiting = queue.latency_critical + queue.throughput
    if not waiting:
        return [Span(f"nothing waits, room for {limit}", "dim")]
    classes = f" ({queue.latency_critical} urgent, {queue.throughput} other)" if queue.throughput else ""
    return [Span(f"{waiting} of {limit}{classes}, oldest {duration(queue.oldest_wait_ms / 1000)}")]


def _model(capacity: Capacity) -> list[Span]:
    policy = f" ({capacity.policy})" if capacity.policy else ""
    context = f" of {capacity.context_tokens:,} tokens" if capacity.context_tokens else ""
    reason = [Span(f"  {capacity.reason}", "red")] if capacity.reason is not None else []
    return [
        Span(capacity.model, "bold"),
        Span("  "),
        Span(capacity.state, STATE_STYLES.get(capacity.state, "")),
        Span(f"  {capacity.capacity} at once{policy}{context}"),
        *reason,
    ]


def _named(numbers: dict[str, str]) -> list[Span]:
    """Return numbers before their names, a gap between two."""
    pairs = [[Span(number, "bold"), Span(f" {name}")] for name, number in numbers.items()]
    return [span for place, pair in enumerate(pairs) for span in ([_GAP, *pair] if place else pair)]
