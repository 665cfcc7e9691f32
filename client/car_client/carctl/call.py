"""`carctl call`: any method of the contract, its params and its result as JSON."""

import contextlib
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from car_client.carctl.failure import Reported, WrongUse
from car_client.carctl.request import read_exactly
from car_client.carctl.view.json_output import json_text
from car_client.client import Client
from car_client.errors import DaemonUnavailable, ProtocolError
from car_client.paths import connect, usable_paths
from car_client.transport.protocol_session import MAX_INCOMING_BYTES
from car_protocol.envelope import NOT_JSON, Incoming, Request, decode_incoming, encode_message
from car_protocol.methods import METHODS

_ID = 1
# A cancellation names a request of its own connection, which here has one request alone: Ctrl-C cancels it.
_NAMES = [name for name in METHODS if name != "$/cancelRequest"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the method and its params."""
    parser.formatter_class = RawDescriptionHelpFormatter
    width = max(map(len, _NAMES))
    parser.epilog = "\n".join(["methods:", *(f"  {name:<{width}}  {METHODS[name].summary}" for name in _NAMES)])
    parser.add_argument("method", metavar="METHOD", choices=_NAMES, help="a method of the list below")
    parser.add_argument(
        "params",
        metavar="JSON",
        nargs="?",
        default="{}",
        help="an object; - reads it from standard input",
    )


def run(_client: Client, options: Namespace) -> None:
    """Print the notifications of one request, a line each, then its result; raises Reported for the daemon's error."""
    frame = encode_message(Request("2.0", options.method, _ID, _params(options.params)))
    with connect(usable_paths(options.socket)) as connection, connection.makefile("rb") as incoming:
        # A daemon that closes the connection has sent the reason before: it is read below.
        with contextlib.suppress(ConnectionError):
            connection.sendall(frame)
        for message in _messages(incoming):
            if message.method is not None:
                shown = {"method": message.method, "params": message.params}
                print(msgspec.json.encode(shown).decode(), flush=True)
            elif message.error is not None:
                print(json_text(message.error, sys.stderr), file=sys.stderr)
                raise Reported(retryable=(message.error.data or {}).get("retryable") is True)
            else:
                print(json_text(message.result, sys.stdout))
                return
    raise DaemonUnavailable("the connection to the daemon was lost")


def _params(argument: str) -> dict[str, Any]:
    """Return the params that an argument or standard input holds."""
    try:
        return msgspec.json.decode(read_exactly(argument), type=dict[str, Any])
    except msgspec.ValidationError:
        raise WrongUse('the params have to be a JSON object, like {"text": "Hi"}') from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise WrongUse(f"the params are not JSON: {error}") from error


def _messages(incoming: BinaryIO) -> Iterator[Incoming]:
    """Yield what the daemon sends until it closes the connection; raises ProtocolError."""
    with contextlib.suppress(ConnectionError):
        while frame := incoming.readline(MAX_INCOMING_BYTES):
            try:
                yield decode_incoming(frame)
            except NOT_JSON as error:
                raise ProtocolError("the daemon sent a frame that is not a JSON-RPC message") from error
