"""What a user without permission for a socket reads."""

import grp
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_client.carctl.access import is_denied, reach_advice
from car_protocol.sockets import SYSTEM_SOCKET
from tests.client.carctl.command import carctl
from tests.client.fake_daemon import FakeDaemon

NOBODY = 65534
# A group that the user of the tests is not in.
GROUP = next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, NOBODY, *os.getgroups()))
JOIN = f"join the group {GROUP.gr_name}: sudo usermod --append --groups {GROUP.gr_name} nobody, then log in again"
ANOTHER = "start a daemon of your own on another socket: CAR_SOCKET=PATH carctl up"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def nobody(daemon: FakeDaemon) -> Iterator[None]:
    """Be a user without permissions, with folders that let everyone in."""
    for folder in daemon.path.parents[:-2]:
        folder.chmod(0o755)
    daemon.path.chmod(0o600)
    for name in ("status", "up", "down", "infer"):
        carctl(name, "--help")  # imports the command, whose files the other user may be unable to read
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


def give_to_group(path: Path, gid: int, mode: int) -> None:
    os.seteuid(0)
    os.chown(path, 0, gid)
    path.chmod(mode)
    os.seteuid(NOBODY)


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("command", [["status"], ["up"], ["down"], ["infer", "Hi"]])
def test_the_private_socket_of_another_user_is_named_as_such(daemon: FakeDaemon, command: list[str]) -> None:
    done = carctl("--socket", daemon.path, *command)
    reason = f"no daemon answers on {daemon.path} (permission denied); only user root may connect"
    assert done.stderr.decode() == f"carctl: {reason}; or {ANOTHER}\n"
    assert (done.returncode, done.stdout) == (69, b"")


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("hidden", [True, False])
def test_the_group_of_a_socket_or_of_its_folder_is_named(daemon: FakeDaemon, hidden: bool) -> None:
    there = daemon.path.parent if hidden else daemon.path
    give_to_group(there, GROUP.gr_gid, 0o750 if hidden else 0o660)
    assert reach_advice([daemon.path]) == f"{JOIN}; or {ANOTHER}"


@pytest.mark.usefixtures("nobody")
def test_a_user_whose_own_socket_is_free_is_offered_that(daemon: FakeDaemon) -> None:
    give_to_group(daemon.path, GROUP.gr_gid, 0o660)
    own = Path("/run/user/65534/car/card.sock")
    assert reach_advice([own, daemon.path]) == f"start a daemon of your own with: carctl up; for {daemon.path} {JOIN}"


@pytest.mark.usefixtures("nobody")
def test_a_group_without_a_name_has_its_number(daemon: FakeDaemon) -> None:
    give_to_group(daemon.path, 54321, 0o660)
    assert "join the group 54321: sudo usermod --append --groups 54321" in reach_advice([daemon.path])


def test_a_missing_socket_and_a_stale_one_are_not_denied(tmp_path: Path) -> None:
    stale = tmp_path / "card.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale))
    paths = [stale, tmp_path / "none.sock"]
    assert not any(map(is_denied, paths))
    assert reach_advice(paths) == "start it with: carctl up"


def test_the_command_that_starts_the_daemon_names_its_socket_as_it_was_named(tmp_path: Path) -> None:
    path = tmp_path / "my card.sock"
    assert reach_advice([path], {}) == f"start it with: carctl --socket '{path}' up"
    assert reach_advice([path], {"CAR_SOCKET": str(path)}) == "start it with: carctl up"
    assert reach_advice([SYSTEM_SOCKET], {}) == "start it with: carctl --system up"
