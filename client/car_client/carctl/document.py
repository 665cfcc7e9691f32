"""A result as it came, for programs."""

from typing import Any, TypeVar

import msgspec

from car_client.client import Client
from car_client.errors import ContractBroken

T = TypeVar("T")


def print_result(client: Client, method: str) -> None:
    """Print a method's result as indented JSON."""
    print_document(client.call(method))


def print_document(document: Any) -> None:
    """Print plain data as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def typed(document: Any, kind: type[T]) -> T:
    """Return plain data that the daemon sent as what it stands for; raises ContractBroken."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ContractBroken(f"the daemon sent what is no {kind.__name__}") from error
