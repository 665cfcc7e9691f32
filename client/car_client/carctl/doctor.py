"""`carctl doctor`: what is wrong between this user and an answer, and how to mend it."""

import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from car_client.carctl import served, setting
from car_client.carctl.finding import Finding
from car_client.carctl.steps import Steps
from car_client.carctl.terminal import one_line
from car_client.client import Client
from car_client.errors import CardError
from car_client.paths import usable_paths
from car_protocol.socket_path import SYSTEM_SOCKET


class NotWell(CardError):
    """Some check failed."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--system", action="store_true", default=SUPPRESS, help="look at the system service")


def run(_client: Client, options: Namespace) -> None:
    """Print a line for each check as soon as it is done; raises NotWell where one failed."""
    levels = []
    for finding in examine(options):
        print(one_line(finding.line()), flush=True)
        levels.append(finding.level)
    if failed := levels.count("fail"):
        raise NotWell(f"{failed} of {len(levels)} checks failed")


def examine(options: Namespace) -> Iterator[Finding]:
    """Yield what is found, from the socket up to the models."""
    path = _place(usable_paths(SYSTEM_SOCKET if options.system else options.socket))
    found = setting.socket(path)
    yield found
    yield from setting.permissions(path)
    if found.level == "ok":
        yield from _daemon(path)
    yield setting.unit(Steps(), system=options.system)


def _daemon(path: Path) -> Iterator[Finding]:
    found = setting.peer(path)
    yield found
    if found.level == "ok":
        yield from served.findings(path)


def _place(paths: Sequence[Path]) -> Path:
    """Return the first path where something is or, without any, the first where this user may not look."""
    there = next(filter(os.path.exists, paths), None)
    return there or next(filter(setting.is_hidden, paths), paths[0])
