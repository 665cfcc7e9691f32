"""Results as JSON."""

from typing import Any, TextIO, TypeVar

import msgspec

from car_client.carctl.terminal.text import CONTROLS
from car_client.client import Client
from car_client.errors import ProtocolError

T = TypeVar("T")
# JSON has the others escaped already.
_ESCAPED = {code: f"\\u{code:04x}" for code in CONTROLS if code > 0x20}


def print_result(client: Client, method: str) -> None:
    """Print a method's result as indented JSON."""
    print_document(client.call(method))


def print_document(document: Any) -> None:
    """Print plain data as indented JSON."""
    print(_formatted(document, 2))


def json_text(document: Any, output: TextIO) -> str:
    """Return plain data or JSON text as JSON: indented for a terminal, in one line for everything else."""
    return _formatted(document, 2 if output.isatty() else -1)


def _formatted(document: Any, indent: int) -> str:
    """Return JSON that no terminal takes for a command: clients choose their labels."""
    return msgspec.json.format(msgspec.json.encode(document), indent=indent).decode().translate(_ESCAPED)


def typed(document: Any, kind: type[T]) -> T:
    """Return plain data from the daemon as a type; raises ProtocolError."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the daemon sent JSON that is not a valid {kind.__name__}") from error
