"""The group of users that a socket file admits."""

import grp
import os
import pwd
from pathlib import Path

import pytest

from car_daemon.sockets.peer import SocketGroup


def with_mode(folder: Path, mode: int) -> Path:
    """Return a file of this user and group with a mode."""
    path = folder / "card.sock"
    path.touch()
    path.chmod(mode)
    return path


def has_an_entry() -> bool:
    """Return whether the user database has the user of this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_uid == os.getuid()
    except KeyError:
        return False


@pytest.mark.skipif(not has_an_entry(), reason="the user database lacks this user, so it is a member of no group")
def test_members_of_the_group_may_connect(tmp_path: Path) -> None:
    assert os.getuid() in SocketGroup(with_mode(tmp_path, 0o660))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_a_group_that_may_not_write_admits_no_user(tmp_path: Path, mode: int) -> None:
    assert os.getuid() not in SocketGroup(with_mode(tmp_path, mode))


def test_users_that_are_unknown_are_not_members(tmp_path: Path) -> None:
    assert 4_000_000_000 not in SocketGroup(with_mode(tmp_path, 0o660))


def test_a_socket_without_a_path_has_no_group() -> None:
    assert os.getuid() not in SocketGroup(Path("@abstract"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another group")
def test_others_are_not_members(tmp_path: Path) -> None:
    path = with_mode(tmp_path, 0o660)
    foreign = next(group.gr_gid for group in grp.getgrall() if group.gr_gid not in os.getgrouplist("root", 0))
    os.chown(path, -1, foreign)
    assert os.getuid() not in SocketGroup(path)
