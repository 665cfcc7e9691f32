"""`carctl`: options, the table of commands, and how each ends."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from io import TextIOWrapper
from typing import NamedTuple

from car_client.carctl import capacity, infer, status
from car_client.carctl.failure import FAILED, INTERRUPTED, USAGE, exit_code, explain
from car_client.client import Client
from car_client.errors import CardError
from car_protocol import __version__
from car_protocol.socket_path import SYSTEM_SOCKET


class Command(NamedTuple):
    """One command: its line of help, its arguments, and what it does."""

    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Client, Namespace], None]


COMMANDS = {
    "status": Command("what the daemon is doing now", status.add_arguments, status.run),
    "capacity": Command("how many requests run at once, and why", capacity.add_arguments, capacity.run),
    "infer": Command("answer a prompt", infer.add_arguments, infer.run),
}


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if sys.stdin is None or sys.stdout is None:
        return _fail("standard input and output must be open", USAGE)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    options = _parser().parse_args(arguments)
    try:
        with Client(SYSTEM_SOCKET if options.system else options.socket) as client:
            COMMANDS[options.command].run(client, options)
        sys.stdout.flush()
    except CardError as error:
        return _fail(explain(error), exit_code(error))
    except UnicodeError:
        return _fail("the text is not UTF-8", USAGE)
    except OSError as error:
        return _unwritable(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _fail(line: str, code: int) -> int:
    print(f"carctl: {line}", file=sys.stderr)
    return code


def _unwritable(error: OSError) -> int:
    # The interpreter must not complain when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0  # who read our output has seen enough
    return _fail((error.strerror or "the output failed").lower(), FAILED)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("carctl", description="Talk to the local inference daemon.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"carctl {__version__}")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", metavar="PATH", help="the daemon's socket")
    where.add_argument("--system", action="store_true", help=f"the system service's: {SYSTEM_SOCKET}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=command.summary, allow_abbrev=False)
        command.add_arguments(each)
    return parser
