"""`carctl drain` and `carctl reload`, for the daemon's own user, root and its administrators."""

from argparse import ArgumentParser, Namespace

from car_client.client import Client


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


def add_reload_arguments(parser: ArgumentParser) -> None:
    """Declare no options."""


def reload(client: Client, options: Namespace) -> None:
    """Make the daemon read its configuration again."""
    client.reload()
