"""`carctl capacity`: how many requests run at once, and why."""

from argparse import ArgumentParser, Namespace

from car_client.carctl.document import print_result
from car_client.carctl.terminal import clipped
from car_client.client import Client
from car_protocol.capacity import Capacity


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="the result as it came")


def run(client: Client, options: Namespace) -> None:
    """Print the default model's capacity."""
    if options.json:
        print_result(client, "inference/capacity")
        return
    for name, value in describe(client.read_capacity()).items():
        print(clipped(f"{name:<11}{value}"))


def describe(capacity: Capacity) -> dict[str, str]:
    """Return the figures by the words they are shown under."""
    machine = capacity.machine
    return {
        "declared": f"{_or(capacity.declared, 'nothing yet')} ({capacity.policy or 'no policy'})",
        "effective": str(capacity.capacity),
        "in use": str(capacity.in_use),
        "available": str(capacity.available),
        "parked": str(capacity.parked),
        "queued": f"{capacity.queued} of {capacity.queue_limit}",
        "pressure": capacity.pressure,
        "state": f"{capacity.state}, {capacity.reason}" if capacity.reason else capacity.state,
        "model": f"{capacity.model}, {_or(capacity.context_tokens, 'unknown')} tokens per sequence",
        "machine": f"limit {_or(machine.limit, 'none')}, {machine.in_use} in use",
    }


def _or(figure: int | None, otherwise: str) -> str:
    return otherwise if figure is None else str(figure)
