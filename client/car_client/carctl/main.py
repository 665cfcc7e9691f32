"""`carctl`: options, the table of commands, and how each ends."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection
from importlib import import_module
from io import TextIOWrapper
from typing import NamedTuple

from car_client.carctl.failure import FAILED, INTERRUPTED, USAGE, exit_code, explain
from car_client.client import Client
from car_client.errors import CardError
from car_protocol import __version__
from car_protocol.socket_path import SYSTEM_SOCKET


class Command(NamedTuple):
    """One command: its line of help, and the module that is imported where it is used, with its functions there."""

    summary: str
    module: str
    add_arguments: str = "add_arguments"
    run: str = "run"

    def declare(self, parser: ArgumentParser) -> None:
        """Declare its arguments."""
        self._function(self.add_arguments)(parser)

    def execute(self, client: Client, options: Namespace) -> None:
        """Do what it does."""
        self._function(self.run)(client, options)

    def _function(self, name: str) -> Callable[..., None]:
        function: Callable[..., None] = getattr(import_module(f"car_client.carctl.{self.module}"), name)
        return function


COMMANDS = {
    "status": Command("what the daemon is doing now", "status"),
    "top": Command("what runs, live", "top"),
    "capacity": Command("how many requests run at once, and why", "capacity"),
    "infer": Command("answer a prompt", "infer"),
    "chat": Command("talk with a model", "chat"),
    "embed": Command("texts as vectors", "texts", "add_embed_arguments", "embed"),
    "tokenize": Command("a text as the model's tokens", "texts", "add_tokenize_arguments", "tokenize"),
    "models": Command("what the daemon can serve", "models"),
    "metrics": Command("the daemon's figures as Prometheus reads them", "metrics"),
    "bench": Command("how fast it answers when several requests run at once", "bench"),
    "drain": Command("finish what runs and waits, then end the daemon", "admin", "add_drain_arguments", "drain"),
    "service": Command("card as a service of this user or machine", "service"),
    "doctor": Command("what is wrong here, and how to mend it", "doctor"),
    "reload": Command("read the daemon's configuration again", "admin", "add_reload_arguments", "reload"),
    "completion": Command("a script that completes this command line", "completion"),
}


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if sys.stderr is None:
        # What is printed to None goes to standard output.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", errors="backslashreplace")
    if sys.stdin is None or sys.stdout is None:
        return _fail("standard input and output must be open", USAGE)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    options = make_parser(arguments).parse_args(arguments)
    try:
        with Client(SYSTEM_SOCKET if options.system else options.socket) as client:
            COMMANDS[options.command].execute(client, options)
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


def make_parser(declared: Collection[str]) -> ArgumentParser:
    """Return the parser, in which the commands among the `declared` words have their arguments."""
    parser = ArgumentParser("carctl", description="Talk to the local inference daemon.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"carctl {__version__}")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", metavar="PATH", help="the daemon's socket")
    where.add_argument("--system", action="store_true", help=f"the system service's: {SYSTEM_SOCKET}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=command.summary, allow_abbrev=False)
        if name in declared:
            command.declare(each)
    return parser
