"""The daemon's metrics over HTTP: off unless configured, on this machine alone, gone with the daemon."""

import socket
import stat
import subprocess
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.support import BIN, PATIENCE_S, Daemon, endless, running
from tests.ports import free_port


class UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def configured(folder: Path, listen: str) -> Path:
    file = folder / "metrics.toml"
    file.write_text(f'[metrics]\nlisten = "{listen}"\n')
    return file


def served(daemon: Daemon) -> None:
    """Return once the daemon serves metrics: it does so once its imports are done."""
    with daemon.connect() as client:
        while "metrics.served" not in daemon.log.read_text():
            client.result("inference/capacity")


def samples(text: str) -> dict[str, float]:
    families = text_string_to_metric_families(text)
    return {f"{each.name}{sorted(each.labels.items())}": each.value for family in families for each in family.samples}


def answer_to(port: int, host: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/metrics", headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_port_serves_what_the_method_returns(folder: Path) -> None:
    port = free_port()
    file = configured(folder, f"127.0.0.1:{port}")
    file.write_text(file.read_text() + 'name = "card.example"\n')
    with running(folder, "--config", str(file)) as daemon:
        served(daemon.ready())
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            kind, over_http = answer.headers["Content-Type"], samples(answer.read().decode())
        assert [answer_to(port, host) for host in ("localhost", "card.example", "evil.example")] == [200, 200, 421]
        with daemon.connect() as client:
            by_method = samples(client.result("daemon/metrics")["text"])
        assert kind.startswith("text/plain; version=")
        assert over_http.keys() == by_method.keys()
        assert over_http["card_requests_total[('outcome', 'completed')]"] == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_socket_serves_them_to_this_user_alone_and_goes_with_the_daemon(folder: Path) -> None:
    path = folder / "metrics.sock"
    with running(folder, "--config", str(configured(folder, f"unix:{path}"))) as daemon:
        served(daemon)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        connection = UnixConnection(path)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read().startswith(b"# HELP card_requests_total")
        connection.close()
    assert not path.exists()


def test_readers_that_say_nothing_do_not_disturb_answers(folder: Path) -> None:
    path = folder / "metrics.sock"
    with running(folder, "--config", str(configured(folder, f"unix:{path}"))) as daemon:
        served(daemon.ready())
        silent = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for each in silent:
            each.connect(str(path))
        with daemon.connect() as client:
            _, last = client.stream(endless(max_tokens=50))
            assert last["result"]["chunks"] > 0
            status = client.result("daemon/status")
            assert len(status["connections"]) == 1
        for each in silent:
            each.close()


def test_nothing_is_served_unless_configured(folder: Path) -> None:
    with running(folder) as daemon:
        daemon.ready()
        assert [path.name for path in folder.iterdir() if path.is_socket()] == ["card.sock"]
    assert "metrics.served" not in daemon.log.read_text()


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("0.0.0.0:9464", ["metrics.listen", "not a loopback address", "127.0.0.1:PORT"]),
        ("localhost", ["metrics.listen", "unix:/PATH"]),
        ("TAKEN", ["Address already in use", "[metrics] listen"]),
        ("unix:FOLDER/file", ["not a socket of this user", "[metrics] listen"]),
    ],
)
def test_where_they_cannot_be_served_the_daemon_does_not_start_and_says_why(
    folder: Path, listen: str, words: list[str]
) -> None:
    (folder / "file").write_text("somebody's")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = listen.replace("TAKEN", f"127.0.0.1:{taken.getsockname()[1]}").replace("FOLDER", str(folder))
        done = subprocess.run(
            [BIN / "card", "--socket", folder / "card.sock", "--config", configured(folder, listen)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 78
    assert all(word in line for word in words), line
    assert not (folder / "card.sock").exists()


def test_another_address_waits_for_the_next_daemon(start: Callable[..., Daemon], folder: Path) -> None:
    file = configured(folder, f"unix:{folder}/metrics.sock")
    daemon = start("--config", str(file), "--log-format", "json")
    with daemon.connect() as client:
        configured(folder, f"unix:{folder}/other.sock")
        client.result("daemon/reload")
        assert '"needs_restart": ["metrics.listen"]' in daemon.log.read_text()
    assert daemon.stop() == 0
