"""A daemon on a socket that a service manager holds: what it is told, what it leaves alone, and restarts under load."""

import json
import os
import pwd
import signal
import socket
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.activation import Holder, activated, holder
from tests.e2e.support import BIN, KNOWN, NOBODY, PATIENCE_S, Daemon, RawClient, another_user, greedy, running

pytestmark = pytest.mark.slow

SMALL = ("--capacity", "4")
RESTARTS = 4


@pytest.fixture
def held() -> Iterator[Holder]:
    """A listening socket without a daemon."""
    with holder() as held:
        yield held


def test_clients_that_queued_before_the_daemon_started_are_served(held: Holder) -> None:
    clients = [held.connect() for _ in range(3)]
    ids = [client.send("infer", greedy(KNOWN[0])) for client in clients]
    held.start(*SMALL)
    for client, request_id in zip(clients, ids, strict=True):
        with client:
            assert client.response(request_id)["result"]["text"] == KNOWN[0].answer
    assert held.stop() == 0


def test_the_socket_of_the_service_manager_is_neither_removed_nor_locked(held: Holder) -> None:
    held.start(*SMALL)
    before = held.path.stat()
    with held.connect() as client:
        assert client.result("daemon/status")["socket"] == str(held.path)
    assert held.stop() == 0
    assert os.path.samestat(held.path.stat(), before)
    assert {entry.name for entry in held.path.parent.iterdir()} == {"card.sock", "log"}


def test_a_path_that_was_removed_is_the_service_managers_to_mend(held: Holder) -> None:
    held.start(*SMALL)
    with held.connect() as client:
        held.path.unlink()
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer
    assert held.stop() == 0
    assert not held.path.exists()


def test_a_listen_pid_of_another_process_is_ignored(start: Callable[..., Daemon]) -> None:
    daemon = start(*SMALL, LISTEN_FDS="2", LISTEN_PID="1").ready()
    assert daemon.stop() == 0
    assert not daemon.path.exists()


def test_a_daemon_by_hand_leaves_the_service_managers_socket_alone(held: Holder) -> None:
    held.start(*SMALL)
    held.connect().close()
    ended = subprocess.run(
        [BIN / "card", "--socket", held.path], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == 75
    with held.connect() as client:
        assert client.result("models/list")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["stream", "stream"], "the service manager passed 2 sockets: card serves one, named rpc"),
        (["file"], "descriptor 3 is not a socket: Socket operation on non-socket"),
        (["silent"], "descriptor 3 is not a listening socket"),
        (["datagram"], "descriptor 3 is not a stream socket"),
        (["inet"], "descriptor 3 is not a Unix socket"),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, list) else "",
)
def test_what_is_no_socket_to_serve_on_is_refused_in_one_line(folder: Path, kinds: list[str], expected: str) -> None:
    given = [MADE[kind](folder / f"{number}.sock") for number, kind in enumerate(kinds)]
    with activated(given, folder, log=subprocess.PIPE) as process:
        _, text = process.communicate(timeout=PATIENCE_S)
    for each in given:
        each.close()
    assert process.returncode == 64
    (line,) = text.decode().splitlines()
    assert line.startswith(f"card: {expected}")


def listening(path: Path) -> socket.socket:
    """Return a listening Unix socket."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.listen()
    return made


def listening_inet(_: Path) -> socket.socket:
    """Return a listening TCP socket."""
    return socket.create_server(("127.0.0.1", 0))


MADE: dict[str, Any] = {
    "stream": listening,
    "inet": listening_inet,
    "file": lambda path: path.open("wb"),
    "silent": lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "datagram": lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
}


def test_an_idle_daemon_ends_and_the_next_client_is_served_by_the_next_one(held: Holder) -> None:
    process = held.start(*SMALL, "--exit-idle", "1")
    with held.connect() as client:
        client.result("infer", greedy(KNOWN[0]))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
    assert process.wait(PATIENCE_S) == 0
    with held.connect() as client:
        request_id = client.send("infer", greedy(KNOWN[0]))
        held.start(*SMALL)
        assert client.response(request_id)["result"]["text"] == KNOWN[0].answer


def test_an_idle_daemon_on_its_own_socket_ends_too(folder: Path) -> None:
    with running(folder, "--exit-idle", "1") as daemon:
        with daemon.connect() as client:
            client.result("infer", greedy(KNOWN[0]))
        assert daemon.process.wait(PATIENCE_S) == 0
        assert not daemon.path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_members_of_the_sockets_group_are_served_and_others_are_not(held: Holder) -> None:
    member = pwd.getpwnam("daemon")
    held.path.parent.chmod(0o711)
    os.chown(held.path, 0, member.pw_gid)
    # Wider than the unit makes it: the kernel itself would keep the others out.
    held.path.chmod(0o666)
    held.start(*SMALL)
    with another_user(member.pw_uid), held.connect() as client:
        assert client.result("models/list")
    with another_user(NOBODY), held.connect() as client:
        client.send_bytes_if_open(b'{"jsonrpc":"2.0","id":1,"method":"models/list"}\n')
        with pytest.raises((EOFError, ConnectionResetError)):
            client.receive()


# Readiness.


def test_the_service_manager_is_notified_of_readiness_once_the_model_decodes_and_of_the_end(held: Holder) -> None:
    with tempfile.TemporaryDirectory(prefix="card-") as name, Manager(Path(name) / "notify") as manager:
        held.start(*SMALL, NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="2000000")
        before = manager.heard_until("READY=1")
        assert any(message.startswith("EXTEND_TIMEOUT_USEC=") for message in before)
        assert "STATUS=loading guide: 0%" in before
        manager.heard_until("STATUS=serving guide on cpu, 4 at once")
        for _ in range(2):
            manager.heard_until("WATCHDOG=1")
        assert held.process is not None
        held.process.send_signal(signal.SIGHUP)
        assert any(message.startswith("RELOADING=1\nMONOTONIC_USEC=") for message in manager.heard_until("READY=1"))
        assert held.stop() == 0
        manager.heard_until("STOPPING=1")


def test_a_daemon_whose_service_manager_is_gone_serves_all_the_same(held: Holder) -> None:
    held.start(*SMALL, NOTIFY_SOCKET="@nobody-listens-there", WATCHDOG_USEC="2000000")
    with held.connect() as client:
        assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


class Manager:
    """A service manager's end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(PATIENCE_S)

    def __enter__(self) -> "Manager":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def heard_until(self, wanted: str) -> list[str]:
        """Return what was sent up to a message, which has to come."""
        heard = [self._socket.recv(4096).decode()]
        while heard[-1] != wanted:
            heard.append(self._socket.recv(4096).decode())
        return heard


# Restarts.


class Load:
    """Connects so many times a second, each with one request; counts how they end."""

    def __init__(self, path: Path, rate: float) -> None:
        self._path = path
        self._pause_s = 1 / rate
        self._ended = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(100) as pool:
            while not self._ended.wait(self._pause_s):
                pool.submit(self._ask).add_done_callback(lambda done: self.outcomes.update([done.result()]))

    def _ask(self) -> str:
        try:
            with RawClient(self._path) as client:
                return _outcome(client.call("infer", greedy(KNOWN[0], max_tokens=4)))
        except ConnectionRefusedError:
            return "refused"
        except (OSError, EOFError) as error:
            return f"unanswered: {type(error).__name__}"


def _outcome(response: dict[str, Any]) -> str:
    if "result" in response:
        return "answered"
    data = response["error"]["data"]
    return "told to retry" if data.get("retryable") is True else json.dumps(response["error"])


@pytest.mark.timeout(900)
def test_restarts_under_load_refuse_no_connection_and_leave_no_request_unanswered(held: Holder) -> None:
    held.start(*SMALL)
    with Load(held.path, rate=50) as load:
        for _ in range(RESTARTS):
            with held.connect() as client:
                client.result("infer", greedy(KNOWN[0], max_tokens=4))
            assert held.stop() == 0
            held.start(*SMALL)
    assert set(load.outcomes) <= {"answered", "told to retry"}, load.outcomes
    assert load.outcomes["answered"] > RESTARTS
