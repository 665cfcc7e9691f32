"""The address at which metrics are served: accepted forms, refusals, and what a failure to bind reports."""

import socket
import stat
from pathlib import Path

import pytest

from car_daemon.sockets.loopback import CannotListen, LoopbackPort, listening_socket, read_address
from car_daemon.sockets.own_socket import OwnSocket


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", LoopbackPort("127.0.0.1", 9464)),
        ("127.8.0.1:1", LoopbackPort("127.8.0.1", 1)),
        ("[::1]:65535", LoopbackPort("::1", 65535)),
        ("unix:/run/user/1/car/metrics.sock", Path("/run/user/1/car/metrics.sock")),
    ],
)
def test_a_loopback_port_or_a_path_is_taken(text: str, address: Path | LoopbackPort) -> None:
    assert read_address(text) == address
    assert str(address) == text.removeprefix("unix:")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.0.0.0:9464", "not a loopback address"),
        ("192.168.1.1:9464", "not a loopback address"),
        ("[::]:9464", "not a loopback address"),
        ("[::ffff:10.0.0.1]:9464", "not a loopback address"),
        ("127.0.0.1:0", "is out of range"),
        ("127.0.0.1:65536", "is out of range"),
        ("127.0.0.256:9464", "not an address"),
        ("127.1:9464", "not an address"),
        ("[127.0.0.1]]:9464", "not an address with a port"),
        ("127.0.0.1", "not an address with a port"),
        ("127.0.0.1:\u0661", "not an address with a port"),
        (":9464", "not an address with a port"),
        ("9464", "not an address with a port"),
        ("localhost:9464", "not an address with a port"),
        ("http://127.0.0.1:9464", "not an address with a port"),
        ("", "not an address with a port"),
        ("unix:metrics.sock", "not an absolute path"),
        ("unix:", "not an absolute path"),
        ("unix:/a\0b", "not an absolute path"),
    ],
)
def test_any_other_text_is_refused_with_the_accepted_forms(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        read_address(text)
    assert "127.0.0.1:PORT" in str(refused.value) or "1 to 65535" in str(refused.value)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}: Address already in use; choose another"):
            listening_socket(LoopbackPort("127.0.0.1", port))


def test_a_port_can_be_bound_again_right_after_its_readers_left() -> None:
    first = listening_socket(LoopbackPort("127.0.0.1", 0))
    address = LoopbackPort("127.0.0.1", first.listener.getsockname()[1])
    with socket.create_connection((address.host, address.port)):
        accepted, _ = first.listener.accept()
        # Who closes first keeps the port busy for a while.
        accepted.close()
    first.close()
    listening_socket(address).close()


def test_a_path_is_private_to_this_user_and_a_stale_one_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    served = listening_socket(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    served.close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("taken", "another daemon serves"),
        ("file", r"choose another \[metrics\] listen"),
        ("x" * 200, r"choose a shorter \[metrics\] listen"),
        ("open/m", r"choose another \[metrics\] listen"),
    ],
)
def test_a_path_that_cannot_be_used_is_named_by_its_setting(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("somebody's")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    holder = OwnSocket(tmp_path / "taken")
    with pytest.raises(CannotListen, match=why):
        listening_socket(tmp_path / name)
    assert (tmp_path / "file").read_text() == "somebody's"
    holder.close()
