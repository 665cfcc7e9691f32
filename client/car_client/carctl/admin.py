"""`carctl metrics`, and for the daemon's own user, root and its administrators `carctl drain` and `carctl reload`."""

from argparse import ArgumentParser, Namespace

from car_client.carctl.terminal.text import visible
from car_client.client import Client
from car_client.errors import CardError, InvalidParams


def add_drain_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `drain`."""
    parser.add_argument(
        "--timeout-ms",
        type=int,
        metavar="MS",
        help="refuse the requests that are unfinished by then",
    )


def drain(client: Client, options: Namespace) -> None:
    """Drain the daemon; print how its requests ended."""
    drained = client.drain(options.timeout_ms)
    print(f"{drained.completed} completed, {drained.refused} refused")


def add_no_arguments(parser: ArgumentParser) -> None:
    """Declare no options."""


def metrics(client: Client, options: Namespace) -> None:
    """Print the daemon's metrics as Prometheus text, without commands for a terminal: clients choose their labels."""
    print(visible(client.metrics()), end="")


def reload(client: Client, options: Namespace) -> None:
    """Make the daemon read its configuration again."""
    reload_config(client)


class ConfigRefused(CardError):
    """The daemon cannot use its configuration, and goes on with the one before."""


def reload_config(client: Client) -> None:
    """Have the daemon read its configuration; raises ConfigRefused, because the daemon itself names only the key."""
    try:
        client.reload()
    except InvalidParams as error:
        facts = f"the daemon cannot use `{error.param}` of its configuration and goes on with the one before"
        raise ConfigRefused(f"{facts}: card --check-config, or the daemon's log, has the reason") from error
