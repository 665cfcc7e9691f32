"""The users whom the mode of a socket file lets in by its group."""

import os
import pwd
import stat
from pathlib import Path

_GROUP_MAY_CONNECT = stat.S_IWGRP


class SocketGroup:
    """The members of the group that may connect to the socket at `path`; nobody where the mode names no group."""

    def __init__(self, path: Path) -> None:
        self._group = _group_of(path)

    def __contains__(self, uid: object) -> bool:
        """Tell whether a user is a member, as the user database says now."""
        if self._group is None or not isinstance(uid, int):
            return False
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            return False
        return self._group in os.getgrouplist(user.pw_name, user.pw_gid)


def _group_of(path: Path) -> int | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_gid if facts.st_mode & _GROUP_MAY_CONNECT else None
