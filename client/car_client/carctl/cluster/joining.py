"""`carctl cluster join`: the environment and the command of a node, and the unit that runs it at each start."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from getpass import getpass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import join, quote
from typing import NoReturn

from car_client.carctl.cluster.head import (
    PATH_VARIABLE,
    TOKEN_VARIABLE,
    ClusterHead,
    TokenError,
    check_head,
    check_token,
    token_path,
    write_token,
)
from car_client.carctl.service.installed import installed_command
from car_client.carctl.terminal.text import is_terminal
from car_client.client import Client
from car_client.errors import CardError

INSTALL = "pip install 'card-daemon[cluster]'"
OLDEST = (2, 60)
# A node keeps its engines for a day without its head, because answers go on without it.
_HEADLESS_S = 86_400
_UNIT = """\
[Unit]
Description=Node of the cluster at {head}, for card's engines
Wants=network-online.target
After=network-online.target

[Service]
{environment}
ExecStart={command}
Restart=always
RestartSec=5

[Install]
WantedBy=default.target
"""


class JoinFailed(CardError):
    """This machine is not a node of the cluster."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `join`."""
    parser.add_argument("address", type=_head, metavar="ADDRESS", help="HOST:PORT of the cluster's head")
    parser.add_argument("--token", metavar="FILE", help="the file with its token (default: the one that Ray reads)")
    parser.add_argument("--unit", action="store_true", help="print a systemd unit that joins at each start")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="after --: options of `ray start`")
    parser.set_defaults(after_dashes="options")


def run(_client: Client, options: Namespace) -> None:
    """Run a node until Ctrl-C, or print its unit; raises CardError."""
    ray = ray_command()
    path = token_path(options.token, os.environ)
    environment = {
        "RAY_AUTH_MODE": "token",
        PATH_VARIABLE: str(path),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_HEADLESS_S),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [str(ray), "start", f"--address={options.address}", "--block", *options.options]
    if options.unit:
        check_token(path)
        print(unit(options.address, environment, command), end="")
        return
    _provide_token(path, given=options.token is not None)
    options.address.check()
    whole = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE} | environment
    # Ray itself takes 20 s for a wrong token, and ends with a traceback.
    check_head(str(options.address), whole)
    print(f"joining {options.address} with the token of {path}; Ctrl-C leaves the cluster")
    variables = " ".join(f"{name}={quote(value)}" for name, value in environment.items())
    print(f"run {variables} {join(command)}", flush=True)
    _become(command, whole)


def ray_command(installed: Callable[[str], str] = version) -> Path:
    """Return Ray's command beside this one; raises CardError if Ray is missing or too old."""
    try:
        found = installed("ray")
    except PackageNotFoundError as error:
        raise JoinFailed(f"Ray is not installed here: {INSTALL}") from error
    if release(found) < OLDEST:
        raise JoinFailed(f"Ray {found} is older than {'.'.join(map(str, OLDEST))}: {INSTALL}")
    return installed_command("ray", "cluster")


def release(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, as far as it has them."""
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts if part.isascii() and part.isdigit())


def unit(head: ClusterHead, environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Return a systemd unit; a node that was cut off for a minute ends, and the unit starts it again."""
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()]
    # Variables are replaced in commands alone.
    words = [_quoted(word.replace("$", "$$")) for word in command]
    return _UNIT.format(head=head, environment="\n".join(lines), command=" ".join(words))


def _quoted(word: str) -> str:
    """Return a word as systemd reads it."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _head(text: str) -> ClusterHead:
    try:
        return ClusterHead.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def _provide_token(path: Path, *, given: bool) -> None:
    """Check the token, which is read from a terminal if Ray's own file is missing; raises TokenError."""
    if not given and not path.exists():
        if not is_terminal(sys.stdin):
            raise TokenError(f"{path} is missing: copy the token file of the head, or name it with --token FILE")
        token = getpass("token of the cluster (on the head: `ray get-auth-token`): ").strip()
        if not token:
            raise TokenError("no token was given: on the head, `ray get-auth-token` prints it")
        write_token(path, token)
        print(f"write {path}, for this user alone")
    check_token(path)


def _become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run the node in the place of this process, so that signals reach Ray itself; raises JoinFailed."""
    try:
        # Ray's own command, and what this command's user wrote after --; it runs without a shell.
        os.execve(command[0], list(command), dict(environment))  # noqa: S606
    except OSError as error:
        raise JoinFailed(f"cannot run {command[0]}: {os.strerror(error.errno or 0).lower()}") from error
