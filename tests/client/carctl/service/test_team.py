"""`carctl --system service install --people`: the door's user, its units and what card.toml says of both."""

import os
import pwd
import tomllib
from pathlib import Path

import pytest

from car_client.carctl.failure import WrongUse
from car_client.carctl.service.steps import ServiceError, Steps
from car_client.carctl.service.team import TeamDoor
from tests.client.carctl.command import carctl
from tests.client.carctl.service.test_service import Notes, files

UID = 993


def door_user(name: str) -> pwd.struct_passwd:
    """Return the door's user, whose group is ours: a test may give no file to another."""
    return pwd.struct_passwd((name, "x", UID, os.getegid(), "", "/var/lib/card-http", "/usr/sbin/nologin"))


def door(root: Path, notes: Notes, *, dry_run: bool = False) -> TeamDoor:
    return TeamDoor(Steps(notes, dry_run=dry_run), root, door_user)


def configured(root: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads((root / "etc/car/card.toml").read_text())


def test_the_daemon_takes_the_word_of_the_doors_user_which_listens_on_a_loopback_port(tmp_path: Path) -> None:
    notes = Notes()
    team = door(tmp_path, notes)
    team.install(team.configure(None, None))
    assert configured(tmp_path) == {"daemon": {"delegates": [UID]}, "http": {"listen": "127.0.0.1:8321"}}
    assert files(tmp_path) == {
        "etc/car/card.toml",
        "etc/sysusers.d/card-http.conf",
        "etc/systemd/system/card-http.service",
        "etc/systemd/system/card-http.socket",
    }
    assert "ListenStream=127.0.0.1:8321" in (tmp_path / "etc/systemd/system/card-http.socket").read_text()
    assert notes.taken() == [
        f"systemd-sysusers {tmp_path}/etc/sysusers.d/card-http.conf",
        "systemctl daemon-reload",
        "systemctl stop card-http.service card-http.socket",
        "systemctl enable --now card-http.socket",
        "systemctl try-reload-or-restart card.service",
    ]
    before = configured(tmp_path)
    again = door(tmp_path, notes)
    again.install(again.configure(None, None))
    assert configured(tmp_path) == before
    assert notes.taken()[1:] == ["systemctl enable --now card-http.socket"]


def test_what_the_file_has_stays_beside_the_doors_user(tmp_path: Path) -> None:
    config = tmp_path / "etc/car/card.toml"
    config.parent.mkdir(parents=True)
    config.write_text("# ours\n[daemon]\ndelegates = [77]\n[people.anna]\n[http]\nlisten = '127.0.0.1:9000'\n")
    team = door(tmp_path, Notes())
    team.configure(None, None)
    assert config.read_text().startswith("# ours\n")
    assert configured(tmp_path)["daemon"] == {"delegates": [77, UID]}
    assert configured(tmp_path)["http"] == {"listen": "127.0.0.1:9000"}


def test_other_machines_are_served_by_a_certificate_whose_key_the_door_alone_reads(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    team = door(tmp_path, Notes())
    settings = team.configure("192.0.2.7:8443", ["box"])
    assert configured(tmp_path)["http"]["listen"] == ["127.0.0.1:8321", "https://192.0.2.7:8443"]
    assert settings.certificate == tmp_path / "etc/car/http-certificate.pem"
    assert settings.certificate.stat().st_mode & 0o777 == 0o644
    assert settings.private_key.stat().st_mode & 0o777 == 0o640
    team.install(settings)
    unit = (tmp_path / "etc/systemd/system/card-http.socket").read_text()
    assert [line for line in unit.splitlines() if line.startswith("ListenStream=")] == [
        "ListenStream=127.0.0.1:8321",
        "ListenStream=192.0.2.7:8443",
    ]
    with pytest.raises(WrongUse, match="--lan"):
        team.configure("everywhere", None)


def test_uninstall_removes_the_units_and_leaves_people_and_keys(tmp_path: Path) -> None:
    notes = Notes()
    team = door(tmp_path, notes)
    team.install(team.configure(None, None))
    notes.taken()
    team.uninstall()
    assert files(tmp_path) == {"etc/car/card.toml"}
    assert notes.taken() == [
        "systemctl disable --now card-http.service card-http.socket",
        "systemctl daemon-reload",
    ]
    team.uninstall()
    assert notes.taken() == []


def test_a_dry_run_changes_nothing_and_a_user_that_was_not_made_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    notes = Notes()
    dry = TeamDoor(Steps(notes, dry_run=True), tmp_path, nobody)
    dry.install(dry.configure("", None))
    assert f"would write {tmp_path / 'etc/car/http-certificate.pem'}" in capsys.readouterr().out
    assert (files(tmp_path), notes.taken()) == (set(), [])
    with pytest.raises(ServiceError, match="made no user"):
        TeamDoor(Steps(notes), tmp_path, nobody).configure(None, None)


def test_people_are_of_the_system_service() -> None:
    done = carctl("service", "install", "--people", "--dry-run")
    assert (done.returncode, b"--system service install --people" in done.stderr) == (2, True)
