"""The door on an adopted port: a unit, its commands noted and its files in a folder of the test; or a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from car_client.carctl.adopt.doors import UNIT, ProcessDoor, UnitDoor
from car_client.carctl.service.steps import Steps
from tests.client.carctl.service.test_service import Notes, files


def test_each_port_is_an_instance_and_the_unit_goes_with_the_last_one(tmp_path: Path) -> None:
    notes = Notes()
    door = UnitDoor(Steps(notes), tmp_path)
    wanted = tmp_path / "systemd/user/default.target.wants"
    names = [door.start(port) for port in (11434, 1234)]
    assert names == ["card-adopted@11434.service", "card-adopted@1234.service"]
    assert notes.taken() == [
        "systemctl --user daemon-reload",
        *(f"systemctl --user enable --now {name}" for name in names),
    ]
    assert "--adopted 127.0.0.1:%i\n" in (tmp_path / "systemd/user" / UNIT).read_text()
    wanted.mkdir()
    (wanted / names[1]).symlink_to(tmp_path / "systemd/user" / UNIT)  # as systemctl would have it
    assert door.end(names[0])
    door.wait(names[0])
    assert files(tmp_path) == {f"systemd/user/{UNIT}", f"systemd/user/default.target.wants/{names[1]}"}
    (wanted / names[1]).unlink()
    door.wait(names[1])
    assert files(tmp_path) == set()
    assert notes.taken()[-2:] == [f"systemctl --user disable --now {names[1]}", "systemctl --user daemon-reload"]


def test_a_door_that_does_not_run_is_not_waited_for(tmp_path: Path) -> None:
    gone = Notes("systemctl --user --quiet is-active")
    assert not UnitDoor(Steps(gone), tmp_path).end("card-adopted@1234.service")


def test_a_door_with_a_long_path_runs_also_if_the_shell_exports_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    waits = "import sys; print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", waits, "x" * 200, "--adopted"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        with process.stdin:
            assert ProcessDoor(None).runs(process.pid)
    assert not ProcessDoor(None).runs(process.pid)
