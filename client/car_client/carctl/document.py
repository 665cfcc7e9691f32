"""A result as it came, for programs."""

from typing import Any

import msgspec

from car_client.client import Client


def print_result(client: Client, method: str) -> None:
    """Print a method's result as indented JSON."""
    print_document(client.call(method))


def print_document(document: Any) -> None:
    """Print plain data as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
