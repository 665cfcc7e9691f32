"""The path is checked periodically, and bound again where it leads elsewhere."""

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from car_daemon.sockets.own_socket import PERIOD_S, OwnSocket, SocketWatch
from tests.daemon.captured_log import capture_logs
from tests.pace import HANG_S


async def watched(own_socket: OwnSocket) -> list[str]:
    """Watch until the socket was bound again; return the events of the log."""
    bound: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
    watch = SocketWatch(own_socket, bound.set_result, period=0.01)
    with capture_logs() as logs:
        watch.start()
        assert await asyncio.wait_for(bound, HANG_S) is own_socket.listener
        await asyncio.sleep(0.05)  # what is logged once must stay so
        watch.stop()
    return [entry["event"] for entry in logs]


def test_the_path_is_checked_every_ten_seconds() -> None:
    assert PERIOD_S == 10


async def test_a_removed_socket_is_bound_again_and_logged(tmp_path: Path) -> None:
    own_socket = OwnSocket(tmp_path / "s")
    (tmp_path / "s").unlink()
    assert await watched(own_socket) == ["socket.bound_again"]
    own_socket.close()


async def test_a_path_in_use_is_logged_once_and_bound_when_it_is_free(tmp_path: Path) -> None:
    own_socket = OwnSocket(tmp_path / "s")
    (tmp_path / "s").unlink()
    (tmp_path / "s").mkdir()
    asyncio.get_running_loop().call_later(0.1, (tmp_path / "s").rmdir)
    assert await watched(own_socket) == ["socket.lost", "socket.bound_again"]
    assert own_socket.is_ours()
    own_socket.close()


async def test_binding_again_is_retried_while_descriptors_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_socket = OwnSocket(tmp_path / "s")
    (tmp_path / "s").unlink()
    renew, failures = own_socket.renew, iter(range(2))

    def short_of_descriptors(listen: Callable[[socket.socket], None]) -> None:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "too many open files")
        renew(listen)

    monkeypatch.setattr(own_socket, "renew", short_of_descriptors)
    assert await watched(own_socket) == ["socket.lost", "socket.bound_again"]
    own_socket.close()
