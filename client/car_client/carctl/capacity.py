"""`carctl capacity`: the number of requests that run at once, and its reasons."""

from argparse import ArgumentParser, Namespace

from car_client.carctl.terminal.text import clipped
from car_client.carctl.view.json_output import print_result
from car_client.client import Client
from car_client.results import Capacity
from car_protocol.status import Queue

_MIB = 1024**2
_RATE = "tokens_per_s_"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(client: Client, options: Namespace) -> None:
    """Print the default model's capacity."""
    if options.json:
        print_result(client, "inference/capacity")
        return
    status = client.status()
    for name, value in describe(status.capacity, status.queue).items():
        print(clipped(f"{name:<11}{value}"))


def describe(capacity: Capacity, queue: Queue) -> dict[str, str]:
    """Return the figures by their labels."""
    machine, inputs = capacity.machine, capacity.inputs or {}
    free, sequence = inputs.get("free_bytes"), inputs.get("kv_bytes_per_sequence", 0)
    memory = "unknown until the model is loaded"
    if free is not None:
        memory = f"{free / _MIB:.0f} MiB free, {sequence / _MIB:.0f} MiB a sequence"
    # Measured tokens/s by the number of sequences that decoded at once.
    rates = {int(name.removeprefix(_RATE)): rate for name, rate in inputs.items() if name.startswith(_RATE)}
    measured = ", ".join(f"{rows}: {rates[rows]:.0f}" for rows in sorted(rates))
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
        "memory": memory,
        "measured": f"{measured} tokens/s" if rates else "nothing",
        "machine": f"limit {_or(machine.limit, 'none')}, {machine.in_use} in use",
    }


def _or(figure: int | None, otherwise: str) -> str:
    return otherwise if figure is None else str(figure)
