"""A result as it came, for programs."""

import msgspec

from car_client.client import Client


def print_result(client: Client, method: str) -> None:
    """Print a method's result as indented JSON."""
    result = msgspec.json.encode(client.call(method))
    print(msgspec.json.format(result, indent=2).decode())
