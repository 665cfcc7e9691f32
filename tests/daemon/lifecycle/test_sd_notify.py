"""Messages to a service manager, none of whose failures can fail the daemon."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from car_daemon.lifecycle.readiness import Notifier
from tests.pace import HANG_S


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """The manager's socket, of both kinds."""
    if request.param == "abstract" and not Path("/proc/self").exists():
        pytest.skip("only Linux has abstract sockets")
    with tempfile.TemporaryDirectory(prefix="card-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(f"{folder}/notify" if request.param == "path" else f"\0{folder}/notify")
        own.settimeout(HANG_S)
        yield own


def notifier_to(manager: socket.socket) -> Notifier:
    """Return a notifier made from the variable that names the socket."""
    address = manager.getsockname()
    named = address if isinstance(address, str) else "@" + address[1:].decode()
    return Notifier.of_environment({"NOTIFY_SOCKET": named})


def test_each_fact_is_one_datagram(manager: socket.socket) -> None:
    notifier = notifier_to(manager)
    notifier.ready()
    notifier.status("serving\nREADY=0")
    notifier.extend(2.5)
    notifier.alive()
    notifier.stopping()
    assert [manager.recv(4096) for _ in range(5)] == [
        b"READY=1",
        b"STATUS=serving READY=0",
        b"EXTEND_TIMEOUT_USEC=2500000",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


def test_a_reload_carries_the_time_of_the_monotonic_clock(manager: socket.socket) -> None:
    before = time.monotonic()
    notifier_to(manager).reloading()
    fields = dict(line.split("=") for line in manager.recv(4096).decode().splitlines())
    assert fields["RELOADING"] == "1"
    assert before - 1e-6 <= int(fields["MONOTONIC_USEC"]) / 1e6 <= time.monotonic()


@pytest.mark.parametrize("address", [None, "", "@", "/nowhere/notify", "@nobody", "relative", "/" + "x" * 200, "@\0"])
def test_a_missing_manager_is_not_an_error(address: str | None) -> None:
    notifier = Notifier(address)
    notifier.ready()
    notifier.status("\udcff")


def test_a_manager_that_does_not_read_blocks_nothing(manager: socket.socket) -> None:
    notifier = notifier_to(manager)
    for _ in range(10_000):
        notifier.alive()


OWN = str(os.getpid())


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": OWN}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
    ],
)
def test_the_watchdog_is_this_process_own_or_none(env: dict[str, str], expected: float | None) -> None:
    assert Notifier.of_environment(env).watchdog_s == expected
    assert env == {}
