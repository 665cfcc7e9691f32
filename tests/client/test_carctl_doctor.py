"""`carctl doctor`: what it finds, and what it says to do about it."""

import os
import socket
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from car_client.carctl import doctor, served, setting
from car_client.carctl.doctor import examine
from car_client.carctl.finding import Finding
from car_client.carctl.steps import Steps
from car_protocol.errors import RpcError
from tests.client.command import carctl
from tests.client.fake_daemon import FakeDaemon

NO_GPU: tuple[str, ...] = ()


def lines(done: "subprocess.CompletedProcess[bytes]") -> dict[str, str]:
    """Return the last level of each check."""
    return {line.split()[1]: line.split()[0] for line in done.stdout.decode().splitlines()}


def found(daemon: FakeDaemon, what: str, gpus: tuple[str, ...] = NO_GPU) -> list[Finding]:
    """Return what is found of one kind."""
    return [finding for finding in served.findings(daemon.path, gpus) if finding.what == what]


def test_all_is_well_with_a_daemon_that_serves(daemon: FakeDaemon) -> None:
    done = carctl("--socket", daemon.path, "doctor")
    assert (done.returncode, done.stderr) == (0, b"")
    levels = lines(done)
    assert set(levels) == {"socket", "folder", "daemon", "version", "model", "memory", "device", "service"}
    assert {level for what, level in levels.items() if what not in ("service", "device")} == {"ok"}


def test_without_a_daemon_the_doctor_says_how_to_start_one(path: Path) -> None:
    done = carctl("--socket", path, "doctor")
    assert done.returncode == 1
    assert f"fail socket      {path}: no such file or directory; start it with `card`".encode() in done.stdout
    assert b"checks failed" in done.stderr


def test_a_socket_on_which_nobody_listens_is_found(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
    done = carctl("--socket", path, "doctor")
    assert done.returncode == 1
    assert b"fail daemon      nobody answers: connection refused" in done.stdout


def test_a_file_in_the_sockets_place_is_found(path: Path) -> None:
    path.touch()
    assert setting.socket(path).level == "fail"


def test_a_folder_that_others_may_write_to_is_found(path: Path) -> None:
    path.parent.chmod(0o777)
    (folder,) = setting.permissions(path)
    assert (folder.level, folder.mend) == ("fail", f"chmod go-w {path.parent}")
    path.parent.chmod(0o1777)
    (folder,) = setting.permissions(path)
    assert folder.level == "ok"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_daemon_of_another_user_is_not_to_be_trusted(path: Path) -> None:
    path.parent.chmod(0o1777)
    os.seteuid(65534)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
    finally:
        os.seteuid(0)
    with listener:
        assert setting.peer(path) == Finding(
            "fail", "daemon", "user 65534 answers", "do not trust it; name your own socket with --socket"
        )


Change = Callable[[dict[str, Any]], Any]
CASES: list[tuple[Change, str, str, str]] = [
    (lambda s: s.update(version="0.0.9"), "version", "warn", "restart the daemon"),
    (lambda s: s.update(protocol="2"), "version", "fail", "upgrade the older one"),
    (lambda s: s["models"][0].update(state="failed", reason="no tensors"), "model", "fail", "complete GGUF"),
    (lambda s: s["models"][0].update(state="unloaded", size_bytes=None), "model", "fail", "correct its path"),
    (lambda s: s["memory"].update(pressure="critical"), "memory", "warn", "end other programs"),
    (lambda s: s["models"][0].update(state="loading", size_bytes=2**50), "memory", "warn", "does not fit"),
]


@pytest.mark.parametrize(("change", "what", "level", "mend"), CASES)
def test_each_ill_has_a_line_that_says_how_to_mend_it(
    daemon: FakeDaemon, change: Change, what: str, level: str, mend: str
) -> None:
    change(daemon.answers["daemon/status"])
    finding = found(daemon, what)[0]
    assert finding.level == level
    assert mend in finding.mend


def test_a_model_on_the_cpu_beside_a_gpu_is_worth_a_word(daemon: FakeDaemon) -> None:
    assert found(daemon, "device", ("/dev/null",))[0].level == "warn"
    assert found(daemon, "device")[0].level == "ok"


def test_memory_names_what_is_free_and_what_a_sequence_takes(daemon: FakeDaemon) -> None:
    (memory,) = found(daemon, "memory")
    assert memory.how_it_is == "12288 MiB of 16384 MiB available, 32 MiB a sequence of guide"


def test_a_daemon_that_answers_with_an_error_is_found(daemon: FakeDaemon) -> None:
    daemon.answers["daemon/status"] = RpcError("draining")
    (finding,) = served.findings(daemon.path)
    assert (finding.level, finding.what) == ("fail", "answer")


def test_a_daemon_that_is_stuck_is_found(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stuck:
        stuck.bind(str(path))
        stuck.listen()
        (finding,) = served.findings(path, patience_s=0.05)
    assert (finding.level, finding.what, finding.how_it_is) == ("fail", "answer", "no answer in 0.05 s")
    assert "restart it" in finding.mend


def test_every_check_is_told_before_the_next_begins(daemon: FakeDaemon) -> None:
    found = examine(Namespace(system=False, socket=daemon.path))
    assert [next(found).what for _ in range(3)] == ["socket", "folder", "daemon"]
    assert daemon.calls == []
    assert next(found).what == "version"


@contextmanager
def locked_out(folder: Path) -> Iterator[None]:
    """Be a user who may not enter a folder."""
    folder.chmod(0)
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_a_folder_that_this_user_may_not_enter_is_found(daemon: FakeDaemon) -> None:
    with locked_out(daemon.path.parent):
        found = list(examine(Namespace(system=False, socket=daemon.path)))
    assert found[0] == Finding(
        "fail",
        "socket",
        f"{daemon.path}: this user may not look into its folder",
        "ask an administrator for the socket's group, then log in again",
    )
    assert [finding.what for finding in found] == ["socket", "folder", "service"]


def test_what_may_not_be_looked_at_is_examined_where_nothing_else_is(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "usable_paths", lambda _: [Path("/none"), daemon.path])
    with locked_out(daemon.path.parent):
        assert str(daemon.path) in next(examine(Namespace(system=False, socket=None))).how_it_is


@pytest.mark.parametrize(("code", "level"), [(0, "ok"), (3, "warn")])
def test_a_service_that_keeps_the_daemon_is_looked_for(code: int, level: str) -> None:
    assert setting.unit(Steps(lambda _command, _quiet: code), system=False).level == level
