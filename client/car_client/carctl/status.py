"""`carctl status`: what the daemon is doing, within 80 columns."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from msgspec import UNSET

from car_client.carctl.document import print_result
from car_client.carctl.terminal import clipped
from car_client.client import Client
from car_protocol.status import EngineStatus, ModelStatus, SequenceStatus, Status

_MIB = 1024**2
_GIB = 1024**3


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="the result as it came")


def run(client: Client, options: Namespace) -> None:
    """Print the status."""
    if options.json:
        print_result(client, "daemon/status")
        return
    for line in describe(client.status()):
        print(clipped(line))


def describe(status: Status) -> Iterator[str]:
    """Yield the status line by line."""
    yield f"card {status.version}, {status.state}, pid {status.pid}, up {_duration(status.uptime_s)}"
    for name, value in _figures(status).items():
        yield f"{name:<10}{value}"
    for model in status.models:
        yield ""
        yield from _model(model)
    if status.sequences:
        yield ""
        yield f"{'sequence':<10}{'model':<17}{'phase':<9}{'connection':<12}{'prompt':>8}{'done':>8}{'age':>11}"
    for sequence in status.sequences:
        yield _sequence(sequence)


def _figures(status: Status) -> dict[str, str]:
    capacity, queue, memory, totals = status.capacity, status.queue, status.memory, status.totals
    return {
        "socket": status.socket,
        "model": f"{capacity.model}, {capacity.state}",
        "capacity": (
            f"{capacity.capacity} ({capacity.policy or 'no policy'}): {capacity.in_use} busy, "
            f"{capacity.available} free, {capacity.parked} parked"
        ),
        "queue": (
            f"{queue.latency_critical} latency-critical, {queue.throughput} throughput of "
            f"{capacity.queue_limit}, oldest {queue.oldest_wait_ms:.0f} ms"
        ),
        "memory": (
            f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available, pressure {memory.pressure}"
        ),
        "requests": (
            f"{totals.received}: {totals.in_flight} in flight, {totals.completed} completed, {totals.failed} failed,"
        ),
        "": f"{totals.cancelled} cancelled, {totals.rejected} rejected",
    }


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
        f"{engine.prefill_tokens_per_s:.1f} prefill, {engine.rss_bytes / _MIB:.0f} MiB"
    )


def _sequence(sequence: SequenceStatus) -> str:
    return (
        f"{sequence.sequence:<10}{sequence.model[:16]:<17}{sequence.phase:<9}{sequence.connection:<12}"
        f"{sequence.prompt_tokens:>8}{sequence.done_tokens:>8}{_duration(sequence.age_ms / 1000):>11}"
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
