"""The socket's path: creation, files that are never touched, and binding again."""

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from car_daemon.sockets.own_socket import AddressInUse, BadAddress, OwnSocket
from car_protocol.sockets import MAX_PATH_BYTES


def answers(path: Path) -> bool:
    """Return whether a program listens there."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def nothing(_listener: socket.socket) -> None:
    """Listen nowhere."""


def test_the_socket_is_private_to_the_user_and_removed_when_closed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    own_socket = OwnSocket(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert answers(path)
    own_socket.close()
    assert not path.exists()


def test_its_mode_is_never_wider_than_in_the_end(tmp_path: Path) -> None:
    before = os.umask(0)
    modes = []

    class Watched(socket.socket):
        def bind(self, address: object) -> None:
            super().bind(address)  # type: ignore[arg-type]
            modes.append(stat.S_IMODE((tmp_path / "s").stat().st_mode))

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "socket", Watched)
            OwnSocket(tmp_path / "s").close()
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_every_directory_that_is_missing_is_made_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        own_socket = OwnSocket(tmp_path / "a" / "b" / "s")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]
    own_socket.close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(BadAddress, match="private"):
        OwnSocket(place / "s")
    assert list(place.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadAddress, match=r"file/car: Not a directory; choose another --socket$"):
        OwnSocket(tmp_path / "file" / "car" / "card.sock")


def test_a_directory_like_tmp_is_fine(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    OwnSocket(tmp_path / "s").close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(BadAddress, match="another user"):
        OwnSocket(tmp_path / "s")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a socket away")
def test_a_socket_of_another_user_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
    os.chown(path, 65534, 65534)
    with pytest.raises(BadAddress, match="not a socket of this user"):
        OwnSocket(path)
    assert path.is_socket()


def test_a_file_a_directory_and_a_link_are_never_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "directory", "link"):
        with pytest.raises(BadAddress, match="remove it or choose"):
            OwnSocket(tmp_path / name)
    assert (tmp_path / "file").read_text() == "precious"
    assert (tmp_path / "link").is_symlink()


def test_a_link_to_a_dead_socket_is_never_followed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    (tmp_path / "link").symlink_to(tmp_path / "dead")
    with pytest.raises(BadAddress):
        OwnSocket(tmp_path / "link")
    assert (tmp_path / "dead").is_socket()


def test_a_socket_that_no_program_answers_on_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    own_socket = OwnSocket(tmp_path / "s")
    assert answers(tmp_path / "s")
    own_socket.close()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_that_another_program_answers_on_stays(tmp_path: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(tmp_path / "s"))
        if kind == socket.SOCK_STREAM:
            other.listen()
        with pytest.raises(AddressInUse):
            OwnSocket(tmp_path / "s")
    assert (tmp_path / "s").is_socket()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "s.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadAddress, match=r"s\.lock"):
        OwnSocket(tmp_path / "s")
    assert not (tmp_path / "elsewhere").exists()


def test_a_path_that_is_too_long_is_refused_with_its_limit(tmp_path: Path) -> None:
    with pytest.raises(BadAddress, match=str(MAX_PATH_BYTES)):
        OwnSocket(tmp_path / ("s" * MAX_PATH_BYTES))


def test_refusals_leave_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = os.listdir("/dev/fd")
    for _ in range(3):
        with pytest.raises(BadAddress):
            OwnSocket(tmp_path / "file")
    own_socket = OwnSocket(tmp_path / "s")
    with pytest.raises(AddressInUse):
        OwnSocket(tmp_path / "s")
    own_socket.close()
    assert os.listdir("/dev/fd") == before


# Binding again.


def test_a_removed_socket_is_bound_again_under_the_same_lock(tmp_path: Path) -> None:
    path = tmp_path / "s"
    own_socket = OwnSocket(path)
    path.unlink()
    assert not own_socket.is_ours()
    own_socket.renew(nothing)
    assert own_socket.is_ours()
    assert answers(path)
    with pytest.raises(AddressInUse, match="daemon"):
        OwnSocket(path)
    own_socket.close()
    assert not path.exists()


def test_a_directory_that_was_removed_is_made_again_with_a_lock_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "d" / "s"
    own_socket = OwnSocket(path)
    for each in path.parent.iterdir():
        each.unlink()
    path.parent.rmdir()
    own_socket.renew(nothing)
    assert answers(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(AddressInUse, match="daemon"):
        OwnSocket(path)
    own_socket.close()


def test_a_file_that_took_the_sockets_place_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    own_socket = OwnSocket(path)
    path.unlink()
    path.write_text("precious")
    with pytest.raises(BadAddress):
        own_socket.renew(nothing)
    own_socket.close()
    assert path.read_text() == "precious"


def test_another_daemon_that_took_the_path_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    own_socket = OwnSocket(path)
    path.unlink()
    (tmp_path / "s.lock").unlink()
    other = OwnSocket(path)
    with pytest.raises(AddressInUse):
        own_socket.renew(nothing)
    own_socket.close()
    assert answers(path)
    other.close()


def test_a_socket_that_is_bound_again_is_as_wide_as_it_was_last_wanted(tmp_path: Path) -> None:
    path = tmp_path / "s"
    own_socket = OwnSocket(path)
    path.unlink()
    own_socket.set_shared(shared=True)
    own_socket.renew(nothing)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    own_socket.set_shared(shared=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    own_socket.close()


def test_binding_again_leaks_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "s"
    own_socket = OwnSocket(path)
    before = len(os.listdir("/dev/fd"))
    for names in (["s"], ["s", "s.lock"]) * 3:
        for name in names:
            (tmp_path / name).unlink()
        own_socket.renew(nothing)
    assert len(os.listdir("/dev/fd")) == before
    own_socket.close()


@pytest.mark.parametrize(
    ("fails", "words"), [("fcntl.flock", "cannot lock"), ("socket.socket.listen", "cannot make the socket")]
)
def test_a_path_that_cannot_be_locked_or_bound_is_reported_and_no_descriptor_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    before = os.listdir("/dev/fd")
    monkeypatch.setattr(fails, refuse)
    with pytest.raises(BadAddress, match=words):
        OwnSocket(tmp_path / "s")
    assert os.listdir("/dev/fd") == before
