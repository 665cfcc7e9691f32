"""`carctl up` and `down`: a daemon in the background, ready when the command returns, gone after the other."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import BIN, PATIENCE_S, environment_of


class Home:
    """A user's folders, and `carctl` run in them; `systemctl` notes its words in `notes`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes = folder, folder / "notes"
        tools = folder / "bin"
        tools.mkdir()
        (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {self.notes}\n')
        (tools / "systemctl").chmod(0o755)
        self.env = environment_of(folder) | {"PATH": f"{tools}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(folder)}
        self.env |= {"XDG_STATE_HOME": str(folder / "state"), "XDG_DATA_HOME": str(folder / "data")}
        self.log = folder / "state" / "car" / "card.log"

    def carctl(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [BIN / "carctl", *words], env=self.env, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def home(folder: Path) -> Iterator[Home]:
    home = Home(folder)
    yield home
    home.carctl("down")


def test_up_starts_a_daemon_that_is_ready_and_down_ends_it(home: Home) -> None:
    code, said, complained = home.carctl("up")
    assert (code, complained) == (0, "")
    assert said.startswith("card is up: guide, ")
    assert said.endswith(f"; log: {home.log}\n")
    assert home.log.stat().st_mode & 0o777 == 0o600
    assert home.carctl("up")[1].startswith("card is up already: guide, ")
    assert home.carctl("up", "--model", "x")[0] == 1
    assert home.carctl("infer", "What is card?")[0] == 0
    assert home.carctl("down")[:2] == (0, "card is down: 0 completed, 0 refused\n")
    assert home.carctl("capacity")[0] == 69
    assert home.carctl("down")[:2] == (0, "card is down already\n")


def test_a_daemon_at_a_second_socket_leaves_the_log_of_the_first_alone(home: Home) -> None:
    home.carctl("up")
    before, second = home.log.stat(), home.folder / "second.sock"
    code, said, _ = home.carctl("--socket", str(second), "up")
    try:
        log = Path(said.strip().rpartition("log: ")[2])
        assert (code, log.parent, log.name.endswith("-second.sock.log")) == (0, home.log.parent, True)
        assert str(second) in log.read_text()
        assert (home.log.stat().st_ino, home.log.read_text().count("daemon.started")) == (before.st_ino, 1)
    finally:
        home.carctl("--socket", str(second), "down")


def test_a_model_that_cannot_be_served_is_told_with_the_end_of_the_log(home: Home) -> None:
    code, _, complained = home.carctl("up", "--model", "/nowhere/model.gguf")
    assert code == 1
    assert "/nowhere/model.gguf" in complained
    assert str(home.log) in complained


def test_a_file_that_is_not_a_model_is_named_without_the_log_before_it(home: Home) -> None:
    code, _, complained = home.carctl("up", "--model", __file__)
    assert code == 1
    assert complained.startswith("carctl: card ended: cannot load the model ")
    assert "test_up.py: the file is not a GGUF; log: " in complained
    assert "daemon.started" not in complained


def test_a_llama_cpp_that_crashes_on_this_machine_is_named_with_what_to_do(home: Home) -> None:
    (home.folder / "llama_cpp.py").write_text("import os; os.kill(os.getpid(), 4)")
    home.env["PYTHONPATH"] = str(home.folder)
    code, _, complained = home.carctl("up")
    assert code == 1
    assert "llama.cpp crashes on this CPU (SIGILL): " in complained
    assert "make rebuild" in complained


def test_an_installed_service_is_started_in_place_of_a_process(home: Home) -> None:
    units = home.folder / "systemd" / "user"
    units.mkdir(parents=True)
    (units / "card.socket").write_text("")
    daemon = subprocess.Popen([BIN / "card", "--log-level", "error"], env=home.env)
    try:
        while home.carctl("infer", "Hi")[0] == 69:
            assert daemon.poll() is None
        assert home.carctl("down")[0] == 0
        assert home.notes.read_text() == "--user stop card.socket card.service\n"
        assert daemon.wait(PATIENCE_S) == 0
    finally:
        daemon.kill()
        daemon.wait()
    assert not home.log.exists()
    refused = home.carctl("up", "--model", "x")
    assert refused[0] == 1
    assert "carctl models use" in refused[2]
