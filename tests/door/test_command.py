"""The `card-http` command: exit codes, socket activation, its end."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from car_http.command import run
from car_http.server import CannotBind, activated, bound
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import BIN, DoorProcess, door_before
from tests.pace import HANG_S


def code_of(flags: list[str]) -> int:
    """Return the exit code of the command."""
    try:
        return run(flags)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        (["--listen", "0.0.0.0:80"], 78, "not a loopback address"),
        (["--config", "/nowhere.toml"], 78, "there is no file"),
        (["--socket", "/" + "x" * 200], 64, "longer than"),
        (["--port", "80"], 64, "unrecognized arguments"),
        (["--exit-idle", "0"], 64, "whole number of seconds"),
        (["--check-config"], 0, ""),
        (["--version"], 0, ""),
    ],
)
def test_a_bad_setting_ends_with_its_code(
    flags: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(flags) == code
    assert expected in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert code_of(["--listen", f"127.0.0.1:{port}", "--listen", f"unix:{folder}/s"]) == 78
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_the_end_removes_the_socket_and_a_kill_leaves_one_that_is_replaced(folder: Path, fake: FakeDaemon) -> None:
    killed = DoorProcess(folder, fake.path)
    killed.kill()
    assert killed.socket.exists()
    with door_before(folder, fake.path) as door:
        assert door.socket == killed.socket
    assert not door.socket.exists()


def test_a_file_in_place_of_the_socket_stays(folder: Path) -> None:
    (folder / "http.sock").write_text("mine")
    with pytest.raises(CannotBind, match="not a socket"):
        bound([folder / "http.sock"])
    assert (folder / "http.sock").read_text() == "mine"


def test_a_folder_that_others_may_write_to_is_refused(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(CannotBind, match="other users may write"):
        bound([shared / "http.sock"])


def test_sockets_of_a_service_manager_are_for_its_own_process_only() -> None:
    assert activated({"LISTEN_FDS": "1", "LISTEN_PID": "1"}) == []
    with pytest.raises(CannotBind, match="LISTEN_FDS is not a number"):
        activated({"LISTEN_FDS": "x", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"})


# systemd's part: the socket is descriptor 3, and the variables name the process that gets it.
ACTIVATOR = """
import os, socket, sys
given = socket.socket(socket.AF_UNIX)
given.bind(sys.argv[1])
given.listen()
os.dup2(given.fileno(), 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"}
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_socket_of_the_service_manager_is_served_and_kept(folder: Path, fake: FakeDaemon) -> None:
    path = folder / "given.sock"
    command = [str(BIN / "card-http"), "--socket", str(fake.path), "--exit-idle", "1"]
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    door = subprocess.Popen(
        [str(BIN / "python"), "-c", ACTIVATOR, str(path), *command], env=env, stderr=subprocess.PIPE
    )
    assert door.stderr is not None
    with door.stderr:
        assert f"listening on {path}" in door.stderr.readline().decode()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: card\r\nConnection: close\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        assert door.wait(HANG_S) == 0
    assert path.exists()
