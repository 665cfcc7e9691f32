"""The status as plain lines, for pipes and where rich is not installed."""

from collections.abc import Iterator

from msgspec import UNSET

from car_client.carctl.figures import Load, bytes_text, callers, duration, engines, load
from car_protocol.status import EngineStatus, ModelStatus, SequenceStatus, Status

_CALLERS = 5


def describe(status: Status) -> Iterator[str]:
    """Yield the status line by line."""
    yield f"card {status.version}, {status.state}, pid {status.pid}, up {duration(status.uptime_s)}"
    for name, value in _figures(status).items():
        yield f"{name:<10}{value}"
    for model in status.models:
        yield ""
        yield from _model(model)
    if status.sequences:
        yield ""
        yield f"{'sequence':<10}{'model':<17}{'phase':<9}{'connection':<12}{'prompt':>8}{'done':>8}{'age':>11}"
        yield from map(_sequence, status.sequences)
    if status.connections:
        yield ""
        yield from _callers(status)


def _figures(status: Status) -> dict[str, str]:
    capacity, memory, totals = status.capacity, status.memory, status.totals
    running = engines(status)
    return {
        "socket": status.socket,
        "model": f"{capacity.model}, {capacity.state}",
        "capacity": (
            f"{capacity.capacity} ({capacity.policy or 'no policy'}): {_load(load(capacity, status.sequences))}"
        ),
        "queue": _queue(status),
        "speed": (
            f"{sum(each.decode_tokens_per_s for each in running):.1f} tokens/s decode, "
            f"{sum(each.prefill_tokens_per_s for each in running):.1f} prefill"
        ),
        "cache": (
            f"{sum(each.cache_hits for each in running)} hits, "
            f"{sum(each.cached_tokens for each in running)} prompt tokens not computed again"
        ),
        "memory": f"{bytes_text(memory.available)} of {bytes_text(memory.total)} free, pressure {memory.pressure}",
        "requests": (
            f"{totals.received}: {totals.in_flight} in flight, {totals.completed} completed, {totals.failed} failed,"
        ),
        "": f"{totals.cancelled} cancelled, {totals.rejected} rejected",
    }


def _load(now: Load) -> str:
    named = [("decode", now.decode), ("prefill", now.prefill), ("other", now.other)]
    busy = [f"{figure} {name}" for name, figure in named if figure]
    return ", ".join([*(busy or ["0 busy"]), f"{now.free} free", f"{now.parked} parked"])


def _queue(status: Status) -> str:
    queue = status.queue
    oldest = f", oldest {duration(queue.oldest_wait_ms / 1000)}" if status.capacity.queued else ""
    limit = status.capacity.queue_limit
    return f"{queue.latency_critical} latency-critical, {queue.throughput} throughput of {limit}{oldest}"


def _model(model: ModelStatus) -> Iterator[str]:
    default = " (default)" if model.default else ""
    context = f", {model.context_tokens} tokens context" if model.context_tokens else ""
    why = f", {model.reason}" if model.reason is not UNSET else ""
    yield f"{model.name}{default}: {model.state}{why}, capacity {model.capacity}{context}"
    for engine in model.engines:
        yield f"  {_engine(engine)}"


def _engine(engine: EngineStatus) -> str:
    return (
        f"engine {engine.pid} {engine.device}: {engine.decode_tokens_per_s:.1f} tok/s decode, "
        f"{engine.prefill_tokens_per_s:.1f} prefill, {bytes_text(engine.rss_bytes)}, {engine.restarts} restarts"
    )


def _sequence(sequence: SequenceStatus) -> str:
    return (
        f"{sequence.sequence:<10}{sequence.model[:16]:<17}{sequence.phase:<9}{sequence.connection:<12}"
        f"{sequence.prompt_tokens:>8}{sequence.done_tokens:>8}{duration(sequence.age_ms / 1000):>11}"
    )


def _callers(status: Status) -> Iterator[str]:
    yield f"{'client':<27}{'connections':>12}{'in flight':>12}{'tokens served':>15}"
    for each in callers(status.connections)[:_CALLERS]:
        yield f"{each.name[:26]:<27}{each.connections:>12}{each.in_flight:>12}{each.tokens_served:>15}"
