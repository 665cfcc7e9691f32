"""The request members that flags and arguments of `infer` and `chat` describe."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import msgspec

from car_client.options import InferOptions, Turn
from car_protocol.conversation import ReasoningMode
from car_protocol.infer import Priority

Messages = list[Turn]
_TYPES: dict[str, Any] = InferOptions.__annotations__


class Flag(NamedTuple):
    """A flag for one member of the request."""

    member: str
    help: str
    metavar: str | None = None
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    action: str = "store"


def _text_file(path: str) -> str:
    """Return a file's text, for argparse."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentTypeError(f"{path}: {(error.strerror or 'unreadable').lower()}") from error
    except UnicodeError as error:
        raise ArgumentTypeError(f"{path}: not UTF-8") from error


def _json_file(path: str) -> Any:
    """Return a file's JSON, for argparse."""
    try:
        return msgspec.json.decode(_text_file(path))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArgumentTypeError(f"{path}: not JSON: {error}") from error


def _json(text: str) -> Any:
    """Return the JSON of an argument that is an object, or of the file that it names, for argparse."""
    if not text.lstrip().startswith("{"):
        return _json_file(text)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArgumentTypeError(f"not JSON: {error}") from error


FLAGS = {
    "--model": Flag("model", "a model in place of the default one", "NAME"),
    "--max-tokens": Flag("max_tokens", "the longest answer, in tokens", "N", int),
    "--temperature": Flag("temperature", "0 is greedy sampling", "T", float),
    "--top-k": Flag("top_k", "sample from the N likeliest tokens; 0 is off", "N", int),
    "--top-p": Flag("top_p", "sample from the likeliest tokens that make up this probability", "P", float),
    "--min-p": Flag("min_p", "leave out tokens below this fraction of the likeliest one's probability", "P", float),
    "--seed": Flag("seed", "draw the same random numbers again", "N", int),
    "--reproducible": Flag("reproducible", "the same request gives the same answer again", action="store_true"),
    "--stop": Flag("stop", "end before this text (repeatable)", "TEXT", action="append"),
    "--schema": Flag(
        "json_schema", "constrain the answer to a JSON schema: its file, or the JSON itself", "FILE", _json
    ),
    "--grammar": Flag("grammar", "constrain the answer to this grammar (GBNF)", "FILE", _text_file),
    "--tools": Flag("tools", "functions that the model may call, as a JSON array", "FILE", _json_file),
    "--reasoning": Flag(
        "reasoning", "whether the model thinks, and what becomes of its thoughts", choices=get_args(ReasoningMode)
    ),
    "--reasoning-tokens": Flag("reasoning_tokens", "the most tokens of thoughts, before the answer", "N", int),
    "--priority": Flag(
        "priority", "throughput requests run after latency-critical requests", choices=get_args(Priority)
    ),
    "--timeout-ms": Flag("timeout_ms", "a deadline over queue, prefill and decode", "MS", int),
    "--client": Flag("client", "a label for fairness and `carctl status`", "NAME"),
    "--session": Flag("session", "keep requests of this name on one replica", "NAME"),
}


def parameter(text: str) -> tuple[str, Any]:
    """Return a name and its value, for argparse; a member that is a string needs no quotes."""
    name, given, value = text.partition("=")
    if not given:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    if name not in _TYPES:
        raise ArgumentTypeError(f"there is no option {name!r}{nearest(name, _TYPES)}")
    read: Any = value
    if _TYPES[name] is not str or value.startswith('"'):
        with suppress(msgspec.DecodeError, RecursionError):  # what is not JSON is a text
            read = msgspec.json.decode(value)
    # The client adds the trace to it, which only an object can take.
    if name == "_meta" and not isinstance(read, dict):
        raise ArgumentTypeError("'_meta' has to be a JSON object")
    return name, read


def add_request_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of the request."""
    for name, flag in FLAGS.items():
        more: dict[str, Any] = {"choices": flag.choices} if flag.choices else {"metavar": flag.metavar}
        if flag.action == "store":
            more["type"] = flag.type
        elif flag.action == "store_true":
            more = {"default": None}
        parser.add_argument(name, dest=flag.member, help=flag.help, action=flag.action, **more)
    parser.add_argument(
        "--param",
        type=parameter,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the request, the value in JSON (repeatable)",
    )


def add_system_argument(parser: _ActionsContainer) -> None:
    """Declare the system message, beside carctl's own --system."""
    parser.add_argument("--system", dest="system_message", metavar="TEXT", help="the system message")


def conversation(system: str | None, *turns: Turn) -> Messages:
    """Return the turns, after the system message if there is one."""
    return [*([Turn(role="system", content=system)] if system else []), *turns]


def options_of(arguments: Namespace) -> InferOptions:
    """Return the given options; a --param overrides a flag."""
    flags = {flag.member: value for flag in FLAGS.values() if (value := getattr(arguments, flag.member)) is not None}
    return cast(InferOptions, flags | dict(arguments.param))


def read_text(argument: str) -> str:
    """Return the argument or, for a dash, standard input without its last line end."""
    return read_exactly(argument).removesuffix("\n") if argument == "-" else argument


def read_exactly(argument: str) -> str:
    """Return the argument or, for a dash, all of standard input."""
    return sys.stdin.buffer.read().decode() if argument == "-" else argument


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `, did you mean NAME?` for the nearest name, empty without one."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), 1)
    return f", did you mean {near[0]!r}?" if near else ""
