"""The descriptors that a service manager hands over, with a fake of launchd's library."""

import ctypes
import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from car_daemon.sockets.activation import SOCKET_NAME, adopt, launchd_descriptors
from car_daemon.sockets.own_socket import BadAddress


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening Unix socket."""
    with tempfile.TemporaryDirectory(prefix="card-") as folder, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{folder}/card.sock")
        made.listen()
        yield made


def test_an_adopted_socket_is_served_without_blocking_and_not_inherited(listener: socket.socket) -> None:
    descriptor = os.dup(listener.fileno())
    os.set_inheritable(descriptor, True)
    given = adopt([descriptor])
    assert given.path == Path(listener.getsockname())
    assert not given.listener.getblocking()
    assert not os.get_inheritable(descriptor)
    given.close()
    assert given.path.is_socket()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has abstract sockets")
def test_an_abstract_socket_is_shown_as_systemd_shows_it() -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"\0card-test-{os.getpid()}")
        made.listen()
        given = adopt([os.dup(made.fileno())])
        assert str(given.path) == f"@card-test-{os.getpid()}"
        given.close()


def test_a_closed_descriptor_is_refused(listener: socket.socket) -> None:
    descriptor = os.dup(listener.fileno())
    os.close(descriptor)
    with pytest.raises(BadAddress, match="is not a socket: Bad file descriptor"):
        adopt([descriptor])


class FakeLaunchd:
    """Passes descriptors as launchd's C function does, and records names and freed memory."""

    def __init__(self, descriptors: list[int], code: int = 0) -> None:
        self._memory = (ctypes.c_int * len(descriptors))(*descriptors)
        self._code = code
        self.names: list[bytes] = []
        self.freed = 0

    def launch_activate_socket(self, name: bytes, descriptors: Any, count: Any) -> int:
        """Fill both in, unless there is an error to return."""
        self.names.append(name)
        if self._code == 0:
            descriptors.contents.contents = ctypes.c_int.from_buffer(self._memory)
            count.contents.value = len(self._memory)
        return self._code

    def free(self, descriptors: Any) -> None:
        """Record that memory was freed."""
        assert ctypes.addressof(descriptors.contents) == ctypes.addressof(self._memory)
        self.freed += 1


def test_launchd_passes_the_socket_by_its_name_and_its_memory_is_freed() -> None:
    library = FakeLaunchd([7, 9])
    assert launchd_descriptors(SOCKET_NAME, library) == [7, 9]
    assert library.names == [b"rpc"]
    assert library.freed == 1


@pytest.mark.parametrize("code", [errno.ESRCH, errno.ENOENT])
def test_a_process_that_launchd_did_not_start_makes_its_own_socket(code: int) -> None:
    library = FakeLaunchd([], code)
    assert launchd_descriptors(SOCKET_NAME, library) == []
    assert library.freed == 0


def test_a_socket_that_was_taken_already_is_refused_with_the_reason() -> None:
    with pytest.raises(BadAddress, match="launchd passes no socket named rpc: Operation already in progress"):
        launchd_descriptors(SOCKET_NAME, FakeLaunchd([], errno.EALREADY))
