"""`carctl doctor`: checks of everything between this user and an answer, each with advice."""

import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator

from car_client.carctl.access import is_denied
from car_client.carctl.config.card_toml import config_path
from car_client.carctl.doctor import daemon_checks, environment_checks
from car_client.carctl.doctor.environment_checks import CheckResult
from car_client.carctl.service.steps import Steps
from car_client.carctl.terminal.text import one_line
from car_client.client import Client
from car_client.errors import CardError
from car_client.paths import usable_paths


class ChecksFailed(CardError):
    """At least one check failed."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--system", action="store_true", default=SUPPRESS, help="check the system service")


def run(_client: Client, options: Namespace) -> None:
    """Print a line for each check as soon as it is done; raises ChecksFailed if one failed."""
    levels = []
    for result in examine(options):
        print(one_line(result.line()), flush=True)
        levels.append(result.level)
    if failed := levels.count("fail"):
        raise ChecksFailed(f"{failed} of {len(levels)} checks failed")


def examine(options: Namespace) -> Iterator[CheckResult]:
    """Yield the results in order, from the socket up to the models."""
    paths = usable_paths(options.socket)
    # The first path that exists or, without any, the first in a folder that this user may not enter.
    there = next(filter(os.path.exists, paths), None)
    path = there or next(filter(is_denied, paths), paths[0])
    socket, answered = environment_checks.socket(path), False
    yield socket
    yield from environment_checks.permissions(path)
    if socket.level == "ok":
        peer = environment_checks.peer(path)
        yield peer
        if peer.level == "ok":
            yield from daemon_checks.check_daemon(path)
            answered = True
    yield from environment_checks.binding(needed=not answered)
    cluster = daemon_checks.configured(config_path(system=options.system))
    if cluster is not None:
        yield from daemon_checks.check_machine(cluster)
    yield environment_checks.service(Steps(), system=options.system)
