"""`carctl completion`: a script by which a shell completes commands, options, choices and file names."""

from argparse import ArgumentParser, Namespace, _SubParsersAction
from typing import Any

from car_client.carctl.failure import WrongUse
from car_client.client import Client

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "PATH")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")


def run(_client: Client, options: Namespace) -> None:
    """Print the script for a shell; raises WrongUse if shtab is not installed."""
    from car_client.carctl.main import COMMANDS, make_parser

    try:
        import shtab
    except ModuleNotFoundError as error:
        raise WrongUse("completion needs shtab: pip install 'card-daemon[terminal]'") from error
    parser = make_parser(COMMANDS)
    _complete_files(parser, shtab.FILE)
    print(shtab.complete(parser, options.shell))


def _complete_files(parser: ArgumentParser, completion: Any) -> None:
    """Mark the arguments that are files, in the parser and in the parsers of its commands, as shtab reads it."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, completion)
        elif action.metavar in _FILES:
            action.complete = completion  # type: ignore[attr-defined]  # the attribute that shtab looks for
