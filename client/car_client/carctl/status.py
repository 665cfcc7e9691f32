"""`carctl status`: the daemon's status as a picture, as plain lines or as JSON."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import msgspec

from car_client.carctl.terminal.text import is_terminal
from car_client.carctl.view.json_output import print_result
from car_client.carctl.view.status_tables import plain_lines
from car_client.client import Client
from car_client.results import Status

_INTERVAL_S = 1.0
Show = Callable[[Status], None]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch a line for each status")
    parser.add_argument("--watch", action="store_true", help="update until Ctrl-C")


def run(client: Client, options: Namespace) -> None:
    """Print the status once, or update it until Ctrl-C."""
    if options.watch:
        statuses = client.watch_status(_INTERVAL_S)
        # Read before the screen is taken, so that without a daemon the terminal stays as it is.
        first = next(statuses)
        with _watching(options.json) as show:
            for status in chain([first], statuses):
                show(status)
    elif options.json:
        print_result(client, "daemon/status")
    else:
        _show_once()(client.status())


def _show_once() -> Show:
    if is_terminal(sys.stdout):
        try:
            from car_client.carctl.view.picture import console, picture
        except ModuleNotFoundError:
            return _print_lines
        screen = console()
        return lambda status: screen.print(picture(status, screen.width, screen.height))
    return _print_lines


@contextmanager
def _watching(as_json: bool) -> Iterator[Show]:
    if as_json:
        yield _print_json
        return
    if not is_terminal(sys.stdout):
        yield _print_block
        return
    try:
        from car_client.carctl.view.picture import picture, screen
    except ModuleNotFoundError:
        yield _print_block
        return
    with screen() as drawn:
        yield lambda status: drawn.show(picture(status, drawn.width, drawn.height))


def _print_lines(status: Status) -> None:
    print(*plain_lines(status), sep="\n")


def _print_block(status: Status) -> None:
    _print_lines(status)
    print(flush=True)


def _print_json(status: Status) -> None:
    print(msgspec.json.encode(status).decode(), flush=True)
