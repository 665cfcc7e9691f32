"""The socket of a real daemon: whose it is, who gets in, and how much it takes."""

import contextlib
import os
import resource
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.support import (
    BIN,
    KNOWN,
    NOBODY,
    PATIENCE_S,
    Daemon,
    RawClient,
    another_user,
    configured,
    greedy,
    running,
)

pytestmark = pytest.mark.slow

Start = Callable[..., Daemon]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


def is_served(daemon: Daemon) -> bool:
    """Tell whether a new connection gets an answer and no refusal."""
    with daemon.connect() as client:
        client.send_bytes_if_open(b'{"jsonrpc":"2.0","id":1,"method":"models/list"}\n')
        return "result" in client.receive()


def is_closed(client: RawClient) -> bool:
    """Tell whether the daemon closed a connection without a word."""
    try:
        return client.socket.recv(1) == b""
    except ConnectionResetError:
        return True


# Who gets in.


@needs_root
def test_another_user_is_closed_before_a_byte_is_read(start: Start, folder: Path) -> None:
    daemon = start()
    daemon.connect().close()
    folder.chmod(0o711)
    daemon.path.chmod(0o666)
    with another_user():
        stranger = RawClient(daemon.path)
    with stranger, contextlib.suppress(BrokenPipeError):
        stranger.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"models/list"}\n')
    with another_user():
        others = [RawClient(daemon.path) for _ in range(20)]
    for other in others:
        with other:
            assert is_closed(other)
    with daemon.connect() as client:
        assert client.result("models/list")
        assert len(client.result("daemon/status")["connections"]) == 1
    # The log is complete once the daemon ended: early events are rendered after the first clients were served.
    assert daemon.stop() == 0
    assert daemon.log.read_text().count("connection.refused") == 1


@needs_root
def test_users_that_the_configuration_names_are_served(start: Start, folder: Path) -> None:
    daemon = start(*configured(folder, f"[daemon]\nallow_uids = [{NOBODY}]\n"))
    daemon.connect().close()
    folder.chmod(0o711)
    with another_user():
        friend = RawClient(daemon.path)
    with friend:
        assert friend.result("daemon/status")["connections"][-1]["uid"] == NOBODY
    with another_user(NOBODY - 1):
        stranger = RawClient(daemon.path)
    with stranger:
        assert is_closed(stranger)


# How many get in.


def with_open_files(limit: str) -> list[str]:
    """Return a command that runs another with a limit of open files."""
    return ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh"]


def test_with_64_open_files_a_hundred_clients_are_each_served_or_refused_with_a_reason(start: Start) -> None:
    daemon = start("--capacity", "2", under=with_open_files("-n 64"))
    with daemon.connect() as first, contextlib.ExitStack() as stack:
        most = first.result("inference/capacity")["limits"]["max_connections"]
        assert 10 < most < 48
        served = refused = 0
        for _ in range(100):
            client = stack.enter_context(daemon.connect())
            client.send_bytes_if_open(b'{"jsonrpc":"2.0","id":1,"method":"models/list"}\n')
            answer = client.receive()
            served += "result" in answer
            refused += answer.get("error", {}).get("data", {}).get("limit") == "max_connections"
        assert (served, refused) == (most - 1, 101 - most)
        assert first.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
    # That they are gone is noticed in the same turn in which the next one comes, or in the one after it.
    while not is_served(daemon):
        assert daemon.process.poll() is None


def test_a_burst_beyond_the_descriptors_closes_no_connection_without_an_error(start: Start) -> None:
    daemon = start("--capacity", "2", under=with_open_files("-n 64")).ready()
    with daemon.connect() as first, contextlib.ExitStack() as stack:
        first.result("models/list")
        daemon.process.send_signal(signal.SIGSTOP)
        clients = [stack.enter_context(daemon.connect()) for _ in range(100)]
        daemon.process.send_signal(signal.SIGCONT)
        for client in clients:
            client.send_bytes_if_open(b'{"jsonrpc":"2.0","id":1,"method":"models/list"}\n')
        answers = [client.receive() for client in clients]
        assert all("result" in answer or answer["error"]["data"]["reason"] == "limit" for answer in answers)
        assert first.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


def test_a_soft_limit_of_open_files_is_raised_as_far_as_it_is_needed(start: Start) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("the hard limit is too low")
    daemon = start(under=with_open_files("-S -n 64"))
    with daemon.connect() as client:
        assert client.result("inference/capacity")["limits"]["max_connections"] == 1024


# What is at the path.


def test_directories_that_are_missing_are_made_private_all_of_them(folder: Path) -> None:
    before = os.umask(0)
    try:
        with running(folder, "--socket", str(folder / "a" / "b" / "c" / "card.sock")) as daemon:
            connect(folder / "a" / "b" / "c" / "card.sock", daemon.process).close()
    finally:
        os.umask(before)
    for path in (folder / "a", folder / "a" / "b", folder / "a" / "b" / "c"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_socket_that_was_removed_is_bound_again_within_ten_seconds(start: Start) -> None:
    daemon = start("--capacity", "2").ready()
    with daemon.connect() as before:
        daemon.path.unlink()
        with daemon.connect() as after:
            assert after.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        assert before.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
    assert "socket.bound_again" in daemon.log.read_text()
    assert daemon.stop() == 0
    assert not daemon.path.exists()


# Where the log goes.


LOST = {
    "a full disk": 'exec "$@" 2>/dev/full',
    "closed": 'exec "$@" 2>&-',
    "a pipe that nobody reads any more": 'mkfifo fifo; exec 3<>fifo 2>fifo 3>&-; exec "$@"',
}


@pytest.mark.parametrize("standard_error", LOST)
def test_a_log_that_cannot_be_written_costs_nothing_else(folder: Path, standard_error: str) -> None:
    path = folder / "card.sock"
    process = subprocess.Popen(
        ["sh", "-c", LOST[standard_error], "sh", BIN / "card", "--socket", str(path), "--log-level", "debug"],
        cwd=folder,
    )
    try:
        with connect(path, process) as client:
            assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert not path.exists()


def connect(path: Path, process: "subprocess.Popen[bytes]") -> RawClient:
    """Return a connection to a daemon that may not listen yet."""
    while True:
        with contextlib.suppress(OSError):
            return RawClient(path)
        assert process.poll() is None


def test_a_second_daemon_cannot_be_misled_by_a_full_disk_either(start: Start) -> None:
    daemon = start()
    daemon.connect().close()
    with Path("/dev/full").open("wb") as full:
        second = subprocess.run(
            [BIN / "card", "--socket", str(daemon.path)], stderr=full, check=False, timeout=PATIENCE_S
        )
    assert second.returncode == 75


def test_a_datagram_socket_at_the_path_is_left_alone(folder: Path) -> None:
    path = folder / "card.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        ended = subprocess.run(
            [BIN / "card", "--socket", str(path)], capture_output=True, check=False, timeout=PATIENCE_S
        )
    assert ended.returncode == 75
    assert path.is_socket()
