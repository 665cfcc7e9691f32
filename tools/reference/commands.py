"""The tables of the command lines' pages, from the parsers that read them."""

import inspect
import re
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator

from car_client.carctl.main import COMMANDS, make_parser
from car_daemon import command as daemon_command
from car_daemon.command import make_parser as daemon_parser
from car_http.command import make_parser as door_parser
from tools.reference.protocol import table

# Arguments that a command shares with an earlier one stand there, from this many on.
_SHARED = 2


def carctl() -> str:
    """Return every command of carctl with its arguments."""
    return "\n\n".join(_sections(make_parser(COMMANDS), "carctl", {}))


def _sections(parser: ArgumentParser, name: str, known: dict[str, list[str]]) -> Iterator[str]:
    """Yield the section of a command, then of the commands below it; `known` has the arguments of earlier commands."""
    rows = _rows(parser)
    arguments = "\n".join(_shared(rows, known))
    known[name] = rows
    if name != "carctl":
        about = (parser.description or "").strip()
        parts = [f"### {name}", about, arguments]
        if arguments or not _below(parser):
            yield "\n\n".join(part for part in parts if part)
    elif arguments:
        yield arguments
    for word, (summary, below) in _below(parser).items():
        below.description = below.description or f"{summary[:1].upper()}{summary[1:]}."
        yield from _sections(below, f"{name} {word}", known)


def arguments_of(parser: ArgumentParser) -> str:
    """Return the arguments of a command, without `--help`; empty if it has none."""
    return "\n".join(_rows(parser))


def _rows(parser: ArgumentParser) -> list[str]:
    """Return a line for each argument."""
    shown = [(f"- `{_usage(action)}`", _meaning(action)) for action in parser._actions if _shown(action)]
    return [f"{usage}: {meaning}" if meaning else usage for usage, meaning in shown]


def _shared(rows: list[str], known: dict[str, list[str]]) -> Iterator[str]:
    """Yield the lines of a command, with one line for the arguments that an earlier command has too."""
    other = max(known, key=lambda name: len(set(rows) & set(known[name])), default="")
    same = [row for row in rows if row in known.get(other, [])]
    if len(same) < _SHARED:
        yield from rows
        return
    yield from (row for row in rows if row not in same)
    names = ", ".join(f"`{row.split('`')[1].split()[0].rstrip(',')}`" for row in same)
    yield f"- as for `{other}`: {names}"


def _shown(action: Action) -> bool:
    return action.help != SUPPRESS and action.dest != "help" and not isinstance(action, _SubParsersAction)


def _usage(action: Action) -> str:
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    shown = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        return shown
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {shown}"


def _meaning(action: Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return text.replace("%(default)s", str(action.default))


def _below(parser: ArgumentParser) -> dict[str, tuple[str, ArgumentParser]]:
    """Return the commands below a command, with their lines of help."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            help_of = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (help_of.get(name, ""), below) for name, below in action.choices.items()}
    return {}


def exit_codes() -> str:
    """Return the exit codes of the daemon with the comments beside them."""
    codes = re.findall(r"^EX_\w+ = (\d+)  # (.+)$", inspect.getsource(daemon_command), re.MULTILINE)
    return table(("exit code", "meaning"), [("0", "a clean stop"), *codes])


TABLES = {
    "exit codes": exit_codes,
    "carctl": carctl,
    "card flags": lambda: arguments_of(daemon_parser()),
    "card-http flags": lambda: arguments_of(door_parser()),
}
