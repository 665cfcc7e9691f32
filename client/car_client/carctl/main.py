"""Entry of `carctl`: its options, the table of commands, and the exit codes."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple, NoReturn

from car_client.carctl.failure import ANSWER_S, FAILED, INTERRUPTED, USAGE, Reported, exit_code, explain
from car_client.client import Client
from car_client.errors import CardError, DaemonUnavailable, RequestError
from car_protocol import __version__
from car_protocol.sockets import SYSTEM_SOCKET


class Command(NamedTuple):
    """A command: its line of help, and a module that is imported on use, with the names of its functions.

    `timeout_s` bounds the waiting for each answer; None for commands that wait for a model. Such a command, if it
    needs the daemon, asks it for its capacity first, which may take `hello_s`.
    """

    summary: str
    module: str
    add_arguments: str = "add_arguments"
    run: str = "run"
    timeout_s: float | None = None
    hello_s: float | None = None

    def declare(self, parser: ArgumentParser) -> None:
        """Declare its arguments."""
        self._function(self.add_arguments)(parser)

    def execute(self, options: Namespace) -> None:
        """Run the command."""
        if self.hello_s is not None:
            # The command itself says what else is wrong.
            with suppress(RequestError, DaemonUnavailable), _client(options, self.hello_s) as client:
                client.connect()
        with _client(options, self.timeout_s) as client:
            self._function(self.run)(client, options)

    def _function(self, name: str) -> Callable[..., None]:
        function: Callable[..., None] = getattr(import_module(f"car_client.carctl.{self.module}"), name)
        return function


COMMANDS = {
    "up": Command("start the daemon and wait until it is ready", "service.up", "add_up_arguments", "up"),
    "down": Command("finish the accepted requests, then end the daemon", "service.up", "add_down_arguments", "down"),
    "status": Command("show what the daemon is doing now", "status", timeout_s=ANSWER_S),
    "top": Command("show the running requests, live; sort and cancel them", "top.command"),
    "why": Command("show why prompts were read again", "why", timeout_s=ANSWER_S),
    "capacity": Command("show how many requests run at once, and why", "capacity", timeout_s=ANSWER_S),
    "infer": Command("answer a prompt", "infer", hello_s=ANSWER_S),
    "decide": Command("answer typed questions about a text by probabilities", "decide", hello_s=ANSWER_S),
    "chat": Command("talk with a model", "chat.command"),
    "embed": Command("turn texts into vectors", "texts", "add_embed_arguments", "embed", hello_s=ANSWER_S),
    "tokenize": Command(
        "cut a text into the model's tokens", "texts", "add_tokenize_arguments", "tokenize", hello_s=ANSWER_S
    ),
    "models": Command("list, load, find, add and remove models", "models.command"),
    "call": Command("call any method of the protocol, in JSON", "call", hello_s=ANSWER_S),
    "metrics": Command(
        "print the daemon's metrics as Prometheus text", "admin", "add_no_arguments", "metrics", ANSWER_S
    ),
    "bench": Command("measure tokens per second and latencies under load", "bench.command"),
    "drain": Command("finish the accepted requests, then end the daemon", "admin", "add_drain_arguments", "drain"),
    "service": Command("install and control card as a service", "service.command"),
    "http": Command("serve OpenAI's, Anthropic's and Ollama's clients; keys, state", "http.command"),
    "adopt": Command("take over Ollama, LM Studio or llama-server: port, names, files", "adopt.command"),
    "page": Command("print a link to the page of the HTTP door, and open it", "http.page"),
    "people": Command("give people keys of their own; their shares", "people", timeout_s=ANSWER_S),
    "usage": Command("show what requests took, by person, app, model or day", "usage", timeout_s=ANSWER_S),
    "cluster": Command("make this machine a node of a cluster; show its machines", "cluster.command"),
    "launch": Command("print or write the configuration of an application", "launch.command"),
    "doctor": Command("check this machine and the daemon, with advice", "doctor.command"),
    "reload": Command("make the daemon read its configuration again", "admin", "add_no_arguments", "reload", ANSWER_S),
    "completion": Command("print a script that completes this command line", "completion"),
}


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with one line in the place of the usage, which is longer than a screen for some commands."""
        self.exit(USAGE, f"{self.prog}: error: {message}; `{self.prog} --help` shows the usage\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Give the words after -- to the argument that the default `after_dashes` names, if there is one.

        argparse itself fills such an argument only if no option comes before the dashes.
        """
        name, words = self.get_default("after_dashes"), list(args or ())
        if name is None or "--" not in words:
            return super().parse_known_args(args, namespace)
        dashes = words.index("--")
        found, unknown = super().parse_known_args(words[:dashes], namespace)
        setattr(found, name, [*getattr(found, name), *words[dashes + 1 :]])
        return found, unknown


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if sys.stderr is None:
        # With None, print(file=sys.stderr) writes to standard output.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", errors="backslashreplace")
    fault = _fault(arguments)
    if fault is not None:
        return _fail(fault, USAGE)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    options = make_parser(arguments).parse_args(arguments)
    if options.system:
        options.socket = str(SYSTEM_SOCKET)
    try:
        COMMANDS[options.command].execute(options)
        sys.stdout.flush()
    except Reported as error:
        return exit_code(error)
    except CardError as error:
        return _fail(explain(error), exit_code(error))
    except UnicodeError:
        return _fail("the text is not UTF-8", USAGE)
    except OSError as error:
        return _unwritable(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _client(options: Namespace, timeout_s: float | None) -> Client:
    # A person at a terminal decides about another attempt.
    return Client(options.socket, timeout=timeout_s, connect_timeout=0, max_retries=0)


def _fault(arguments: list[str]) -> str | None:
    """Return the reason why nothing can be run."""
    if sys.stdin is None or sys.stdout is None:
        return "standard input and output must be open"
    return None if arguments else "name a command: carctl up starts the daemon, carctl --help shows them all"


def _fail(line: str, code: int) -> int:
    print(f"carctl: {line}", file=sys.stderr)
    return code


def _unwritable(error: OSError) -> int:
    # Flushing at exit would fail again, and print a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0  # the reader of the output has left, as `head` does
    return _fail((error.strerror or "the output failed").lower(), FAILED)


def make_parser(declared: Collection[str]) -> ArgumentParser:
    """Return the parser, in which the commands among the `declared` words have their arguments."""
    parser = _Parser("carctl", description="Talk to the local inference daemon.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"carctl {__version__}")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", metavar="PATH", help="the socket of the daemon")
    where.add_argument("--system", action="store_true", help=f"the socket of the system service, {SYSTEM_SOCKET}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=command.summary, allow_abbrev=False)
        if name in declared:
            command.declare(each)
    return parser
