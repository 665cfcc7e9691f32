"""Checks around the daemon: its socket, permissions, the listening user, and its service."""

import os
import socket as sockets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from car_client.carctl.access import access_advice
from car_client.carctl.service.installed import card_command
from car_client.carctl.service.steps import ServiceError, Steps
from car_client.carctl.service.systemd import SERVICE
from car_client.carctl.service.units import LAUNCHD_LABEL
from car_protocol.sockets import peer_credentials

Level = Literal["ok", "warn", "fail"]


class CheckResult(NamedTuple):
    """One line of `carctl doctor`; `advice` is empty if nothing is to be done."""

    level: Level
    subject: str
    facts: str
    advice: str = ""

    def line(self) -> str:
        """Return the result as one line."""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.level:<5}{self.subject:<12}{self.facts}{advice}"


_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_TIMEOUT_S = 5.0
_START = "start it with `carctl up`, or `carctl service install` for good"


def socket(path: Path) -> CheckResult:
    """Check that the socket exists."""
    try:
        facts = path.stat()
    except PermissionError:
        return CheckResult("fail", "socket", f"{path}: this user may not enter its folder", access_advice(path))
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        return CheckResult("fail", "socket", f"{path}: {reason}", _START)
    if not stat.S_ISSOCK(facts.st_mode):
        return CheckResult("fail", "socket", f"{path} is not a socket", "remove it, or name another with --socket")
    return CheckResult("ok", "socket", str(path))


def permissions(path: Path) -> Iterator[CheckResult]:
    """Check that no other user can replace the socket, and that this user may connect to it."""
    try:
        folder = path.parent.stat()
    except OSError:
        return
    if folder.st_uid not in (0, os.getuid()):
        yield CheckResult("fail", "folder", f"{path.parent} belongs to user {folder.st_uid}", "choose another --socket")
    elif folder.st_mode & _OTHERS_MAY_WRITE and not folder.st_mode & stat.S_ISVTX:
        yield CheckResult("fail", "folder", f"others may write to {path.parent}", f"chmod go-w {path.parent}")
    else:
        yield CheckResult("ok", "folder", f"{path.parent}, mode {stat.S_IMODE(folder.st_mode):03o}")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        yield CheckResult("fail", "access", f"this user may not connect to {path}", access_advice(path))


def peer(path: Path) -> CheckResult:
    """Check the user that listens, which is the service manager's under one."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(str(path))
            uid, _ = peer_credentials(connection)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower() if error.errno else "no answer"
            return CheckResult("fail", "daemon", f"no daemon answers: {reason}", _START)
    if uid not in (0, os.getuid()):
        return CheckResult("fail", "daemon", f"user {uid} answers", "name your own socket with --socket")
    return CheckResult("ok", "daemon", f"user {uid} answers")


def binding(*, needed: bool) -> Iterator[CheckResult]:
    """Have `card --check` try llama.cpp; it is needed if this installation starts the daemon."""
    try:
        # The command is this installation's own, and runs without a shell.
        tried = subprocess.run(  # noqa: S603
            [card_command(), "--check"], capture_output=True, text=True, errors="replace", check=False
        )
    except (ServiceError, OSError) as error:
        yield CheckResult("warn", "binding", f"llama.cpp was not tried: {error}")
        return
    first, *advice = (line.removeprefix("card: ") for line in tried.stderr.splitlines() or ["card --check is silent"])
    yield CheckResult("ok" if tried.returncode == 0 else "fail" if needed else "warn", "binding", first)
    for line in advice:
        yield CheckResult("warn", "binding", line)


def service(steps: Steps, *, system: bool) -> CheckResult:
    """Check that a service manager runs the daemon."""
    if sys.platform == "darwin":
        running = steps.succeeds("launchctl", "print", f"gui/{os.getuid()}/{LAUNCHD_LABEL}")
    else:
        running = steps.succeeds("systemctl", *([] if system else ["--user"]), "--quiet", "is-active", SERVICE)
    if running:
        return CheckResult("ok", "service", "is running")
    install = "carctl service install --system" if system else "carctl service install"
    return CheckResult("warn", "service", "no service runs the daemon", f"`{install}` sets one up")
