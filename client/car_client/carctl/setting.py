"""What the doctor sees around the daemon: its socket, who may reach it, who listens there, and its service."""

import os
import socket as sockets
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from car_client.carctl.finding import Finding
from car_client.carctl.steps import Steps
from car_client.carctl.systemd import SERVICE
from car_client.carctl.units import LAUNCHD_LABEL

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UCRED = struct.Struct("3i")
# macOS: SOL_LOCAL, LOCAL_PEERCRED with a struct xucred (version, uid, ...).
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED = 0, 1, struct.Struct("2I72x")
_PATIENCE_S = 5.0
_JOIN = "ask an administrator for the socket's group, then log in again"
_START = "start it with `card`, or `carctl service install` for good"


def socket(path: Path) -> Finding:
    """Look whether there is a socket."""
    try:
        facts = path.stat()
    except PermissionError:
        return Finding("fail", "socket", f"{path}: this user may not look into its folder", _JOIN)
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        return Finding("fail", "socket", f"{path}: {why}", _START)
    if not stat.S_ISSOCK(facts.st_mode):
        return Finding("fail", "socket", f"{path} is no socket", "remove it, or name another with --socket")
    return Finding("ok", "socket", str(path))


def permissions(path: Path) -> Iterator[Finding]:
    """Look who else could replace the socket, and whether this user may use it."""
    try:
        folder = path.parent.stat()
    except OSError:
        return
    if folder.st_uid not in (0, os.getuid()):
        yield Finding("fail", "folder", f"{path.parent} belongs to user {folder.st_uid}", "choose another --socket")
    elif folder.st_mode & _OTHERS_MAY_WRITE and not folder.st_mode & stat.S_ISVTX:
        yield Finding("fail", "folder", f"others may write to {path.parent}", f"chmod go-w {path.parent}")
    else:
        yield Finding("ok", "folder", f"{path.parent}, mode {stat.S_IMODE(folder.st_mode):03o}")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        yield Finding("fail", "access", f"this user may not connect to {path}", _JOIN)


def is_hidden(path: Path) -> bool:
    """Tell whether this user may not even see what is there."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def peer(path: Path) -> Finding:
    """Look who listens; under a service manager it is the manager."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            connection.connect(str(path))
            uid = _peer_uid(connection)
        except OSError as error:
            why = os.strerror(error.errno or 0).lower() if error.errno else "no answer"
            return Finding("fail", "daemon", f"nobody answers: {why}", _START)
    if uid not in (0, os.getuid()):
        return Finding("fail", "daemon", f"user {uid} answers", "do not trust it; name your own socket with --socket")
    return Finding("ok", "daemon", f"user {uid} answers")


def unit(steps: Steps, *, system: bool) -> Finding:
    """Look whether a service manager keeps the daemon."""
    if sys.platform == "darwin":
        running = steps.succeeds("launchctl", "print", f"gui/{os.getuid()}/{LAUNCHD_LABEL}")
    else:
        running = steps.succeeds("systemctl", *([] if system else ["--user"]), "--quiet", "is-active", SERVICE)
    if running:
        return Finding("ok", "service", "is running")
    install = "carctl service install --system" if system else "carctl service install"
    return Finding("warn", "service", "no service keeps the daemon running", f"`{install}` makes one")


def _peer_uid(connection: sockets.socket) -> int:
    if sys.platform == "linux":
        _, uid, _ = _UCRED.unpack(connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _UCRED.size))
    else:
        _, uid = _XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))
    return int(uid)
