"""`carctl status`: what the daemon is doing, as a picture, as plain lines or as JSON."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import msgspec

from car_client.carctl import plain
from car_client.carctl.document import print_result
from car_client.carctl.terminal import clipped, is_terminal
from car_client.client import Client
from car_protocol.status import Status

_INTERVAL_S = 1.0
Show = Callable[[Status], None]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="the result as it came; with --watch a line for each")
    parser.add_argument("--watch", action="store_true", help="again and again until Ctrl-C")


def run(client: Client, options: Namespace) -> None:
    """Print the status once, or keep it on the screen."""
    if options.watch:
        statuses = client.watch_status(_INTERVAL_S)
        # Without a daemon there is no screen to be taken.
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
            from car_client.carctl.picture import show
        except ModuleNotFoundError:
            return _print_lines
        return show
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
        from car_client.carctl.live import screen
        from car_client.carctl.picture import picture
    except ModuleNotFoundError:
        yield _print_block
        return
    with screen() as drawn:
        yield lambda status: drawn.show(picture(status, drawn.width, drawn.height))


def _print_lines(status: Status) -> None:
    for line in plain.describe(status):
        print(clipped(line))


def _print_block(status: Status) -> None:
    _print_lines(status)
    print(flush=True)


def _print_json(status: Status) -> None:
    print(msgspec.json.encode(status).decode(), flush=True)
