"""`carctl drain` and `carctl reload`: for the daemon's own user, root and its administrators."""

from argparse import ArgumentParser, Namespace

from car_client.carctl.document import typed
from car_client.client import Client
from car_protocol.admin import Drained


def add_drain_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `drain`."""
    parser.add_argument("--timeout-ms", type=int, metavar="MS", help="then what is not done is refused")


def drain(client: Client, options: Namespace) -> None:
    """Have the daemon finish and end; print what became of its requests."""
    params = {} if options.timeout_ms is None else {"timeout_ms": options.timeout_ms}
    drained = typed(client.call("daemon/drain", params), Drained)
    print(f"{drained.completed} completed, {drained.refused} refused")


def add_reload_arguments(parser: ArgumentParser) -> None:
    """Declare no options."""


def reload(client: Client, options: Namespace) -> None:
    """Have the daemon read its configuration again."""
    client.call("daemon/reload")
