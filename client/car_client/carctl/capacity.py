"""`carctl capacity`: how many requests run at once, and why."""

from argparse import ArgumentParser, Namespace

from car_client.carctl.document import print_result
from car_client.carctl.terminal import clipped
from car_client.client import Client
from car_protocol.capacity import Capacity
from car_protocol.status import Queue

_MIB = 1024**2
_RATE = "tokens_per_s_"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="the result as it came")


def run(client: Client, options: Namespace) -> None:
    """Print the default model's capacity."""
    if options.json:
        print_result(client, "inference/capacity")
        return
    status = client.status()
    for name, value in describe(status.capacity, status.queue).items():
        print(clipped(f"{name:<11}{value}"))


def describe(capacity: Capacity, queue: Queue) -> dict[str, str]:
    """Return the figures by the words they are shown under."""
    machine = capacity.machine
    return {
        "declared": f"{_or(capacity.declared, 'nothing yet')} ({capacity.policy or 'no policy'})",
        "effective": str(capacity.capacity),
        "in use": str(capacity.in_use),
        "available": str(capacity.available),
        "parked": str(capacity.parked),
        "queued": (
            f"{queue.latency_critical} latency-critical, {queue.throughput} throughput of {capacity.queue_limit}"
        ),
        "pressure": capacity.pressure,
        "state": f"{capacity.state}, {capacity.reason}" if capacity.reason else capacity.state,
        "model": f"{capacity.model}, {_or(capacity.context_tokens, 'unknown')} tokens per sequence",
        "memory": _memory(capacity),
        "measured": _measured(capacity),
        "machine": f"limit {_or(machine.limit, 'none')}, {machine.in_use} in use",
    }


def _memory(capacity: Capacity) -> str:
    inputs = capacity.inputs or {}
    if "free_bytes" not in inputs:
        return "unknown until the model is loaded"
    return f"{inputs['free_bytes'] / _MIB:.0f} MiB free, {inputs['kv_bytes_per_sequence'] / _MIB:.0f} MiB a sequence"


def _measured(capacity: Capacity) -> str:
    """Name the tokens/s that were measured, by the sequences that decoded at once."""
    inputs = capacity.inputs or {}
    rates = {int(name.removeprefix(_RATE)): rate for name, rate in inputs.items() if name.startswith(_RATE)}
    return ", ".join(f"{rows}: {rates[rows]:.0f}" for rows in sorted(rates)) + " tokens/s" if rates else "nothing"


def _or(figure: int | None, otherwise: str) -> str:
    return otherwise if figure is None else str(figure)
