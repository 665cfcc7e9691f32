"""Advice for a user without a daemon: to start one, or to get permission for the socket of another user's."""

import grp
import os
import pwd
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from car_protocol.sockets import SYSTEM_SOCKET

_OWN = "start a daemon of your own"


def reach_advice(tried: Sequence[Path], env: Mapping[str, str] = os.environ) -> str:
    """Return what gives this user a daemon, if none answers on the paths."""
    denied = [path for path in tried if is_denied(path)]
    if not denied:
        return f"start it with: carctl {_option(tried, env)}up"
    if len(denied) < len(tried):
        return f"{_OWN} with: carctl up; for {denied[0]} {join_advice(denied[0])}"
    return access_advice(denied[0])


def access_advice(path: Path) -> str:
    """Return how this user gets to a socket, or to a daemon on another one."""
    return f"{join_advice(path)}; or {_OWN} on another socket: CAR_SOCKET=PATH carctl up"


def join_advice(path: Path) -> str:
    """Return the group to join, or the only user that may connect."""
    facts = _nearest(path)
    needed = stat.S_IXGRP if stat.S_ISDIR(facts.st_mode) else stat.S_IWGRP
    if not facts.st_mode & needed or facts.st_gid == 0:
        return f"only user {_name(pwd.getpwuid, facts.st_uid)} may connect"
    group = _name(grp.getgrgid, facts.st_gid)
    user = _name(pwd.getpwuid, os.geteuid())
    return f"join the group {group}: sudo usermod --append --groups {group} {user}, then log in again"


def is_denied(path: Path) -> bool:
    """Return whether permissions keep this user from the socket or from its folder."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, PermissionError)
    return not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _option(tried: Sequence[Path], env: Mapping[str, str]) -> str:
    """Return the option that named the only path, unless the environment did."""
    if len(tried) > 1 or str(tried[0]) == env.get("CAR_SOCKET"):
        return ""
    return "--system " if tried[0] == SYSTEM_SOCKET else f"--socket {quote(str(tried[0]))} "


def _nearest(path: Path) -> os.stat_result:
    """Return the facts of the socket or, if a folder hides it, the facts of the folder."""
    for each in (path, *path.parents):
        try:
            return each.stat()
        except OSError:
            continue
    raise AssertionError("every user may read the facts of the root folder")


def _name(lookup: Callable[[int], Any], number: int) -> str:
    """Return the first member of an entry of the user or group database, else the number."""
    try:
        return str(lookup(number)[0])
    except KeyError:
        return str(number)
