"""The people that can log in on this machine, by its table of users."""

import pwd
from collections.abc import Iterable

_FIRST = 500  # macOS counts its people from 501, other systems from 1000
_LAST = 60_000
_NO_SHELLS = ("nologin", "false", "sync")


def humans(users: Iterable[pwd.struct_passwd] | None = None) -> list[str]:
    """Return the names of users that are people: with an id of people's range, a shell and a home."""
    found = pwd.getpwall() if users is None else users
    return sorted(
        each.pw_name
        for each in found
        if _FIRST < each.pw_uid < _LAST and each.pw_shell.rpartition("/")[2] not in (*_NO_SHELLS, "")
    )
