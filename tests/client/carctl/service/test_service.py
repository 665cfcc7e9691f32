"""`carctl service`: the files it writes and the commands it runs, against service managers that only take notes."""

import plistlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from car_client.carctl.service.launchd import Agent
from car_client.carctl.service.steps import ServiceError, Steps
from car_client.carctl.service.systemd import SystemUnits, UserUnits
from tests.client.carctl.command import carctl

CARD = Path("/opt/card/bin/card")
ENABLE = "enable --now card.socket card.service"


class Notes:
    """Runs nothing and notes each command; those that begin as `failing` says fail."""

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)
        self.commands: list[str] = []

    def __call__(self, command: Sequence[str], quiet: bool) -> int:
        """Note a command; what only asks is none."""
        line = " ".join(command)
        if not quiet:
            self.commands.append(line)
        return int(any(line.startswith(start) for start in self.failing))

    def taken(self) -> list[str]:
        """Return the commands since the last time."""
        commands, self.commands = self.commands, []
        return commands


def files(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# The user's units.


def test_without_systemd_nothing_is_installed(tmp_path: Path) -> None:
    manager = UserUnits(Steps(Notes("systemctl --user show-environment")), tmp_path)
    with pytest.raises(ServiceError, match="carctl up"):
        manager.require()


def test_install_writes_enables_and_starts_the_users_units_and_twice_changes_nothing(tmp_path: Path) -> None:
    notes = Notes()
    manager = UserUnits(Steps(notes), tmp_path)
    manager.install(CARD)
    assert files(tmp_path) == {"systemd/user/card.socket", "systemd/user/card.service"}
    assert f'ExecStart="{CARD}" --log-format json' in (tmp_path / "systemd/user/card.service").read_text()
    assert notes.taken() == [
        "systemctl --user daemon-reload",
        "systemctl --user try-restart card.service card.socket",
        f"systemctl --user {ENABLE}",
        "loginctl enable-linger",
    ]
    before = (tmp_path / "systemd/user/card.service").stat()
    manager.install(CARD)
    assert (tmp_path / "systemd/user/card.service").stat() == before
    assert not [command for command in notes.taken() if "restart" in command]


def test_an_install_from_elsewhere_restarts_the_service_and_leaves_the_socket_open(tmp_path: Path) -> None:
    notes = Notes()
    UserUnits(Steps(notes), tmp_path).install(CARD)
    notes.taken()
    UserUnits(Steps(notes), tmp_path).install(Path("/opt/other/card"))
    assert "systemctl --user try-restart card.service" in notes.taken()


def test_uninstall_removes_what_install_wrote_and_twice_changes_nothing(tmp_path: Path) -> None:
    notes = Notes()
    manager = UserUnits(Steps(notes), tmp_path)
    manager.install(CARD)
    notes.taken()
    manager.uninstall()
    assert files(tmp_path) == set()
    assert notes.taken() == [
        "systemctl --user disable --now card.service card.socket",
        "systemctl --user daemon-reload",
    ]
    manager.uninstall()
    assert notes.taken() == []


def test_a_dry_run_says_everything_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes()
    UserUnits(Steps(notes, dry_run=True), tmp_path).install(CARD)
    assert (notes.taken(), files(tmp_path)) == ([], set())
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"would write {tmp_path}/systemd/user/card.socket"
    assert said[-2:] == [f"would run systemctl --user {ENABLE}", "would run loginctl enable-linger"]


def test_a_command_that_fails_ends_the_install_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="daemon-reload` failed with exit code 1"):
        UserUnits(Steps(Notes("systemctl --user daemon-reload")), tmp_path).install(CARD)


def test_a_machine_without_lingering_is_told_what_that_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    UserUnits(Steps(Notes("loginctl")), tmp_path).install(CARD)
    assert "the service ends when you log out" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_one_plain_line(tmp_path: Path) -> None:
    (tmp_path / "systemd").touch()
    with pytest.raises(ServiceError, match=r"cannot change .*card.socket: "):
        UserUnits(Steps(Notes()), tmp_path).install(CARD)


@pytest.mark.parametrize(
    ("follow", "expected"),
    [
        (False, "journalctl --user --unit card.service --lines 20 --no-pager"),
        (True, "journalctl --user --unit card.service --lines 20 --follow"),
    ],
)
def test_logs_are_the_journals(tmp_path: Path, follow: bool, expected: str) -> None:
    notes = Notes()
    UserUnits(Steps(notes), tmp_path).logs(20, follow=follow)
    assert notes.taken() == [expected]


# The system's units.


def test_install_for_the_system_makes_the_group_first(tmp_path: Path) -> None:
    notes = Notes()
    SystemUnits(Steps(notes), root=tmp_path).install(CARD)
    assert files(tmp_path / "etc") == {
        "sysusers.d/card.conf",
        "systemd/system/card.socket",
        "systemd/system/card.service",
    }
    assert notes.taken() == [
        f"systemd-sysusers {tmp_path}/etc/sysusers.d/card.conf",
        "systemctl daemon-reload",
        "systemctl try-restart card.service card.socket",
        f"systemctl {ENABLE}",
    ]


def test_the_gpu_drop_in_comes_and_goes_with_its_flag(tmp_path: Path) -> None:
    drop_in = tmp_path / "etc/systemd/system/card.service.d/gpu.conf"
    SystemUnits(Steps(Notes()), gpu=True, root=tmp_path).install(CARD)
    assert drop_in.is_file()
    notes = Notes()
    SystemUnits(Steps(notes), root=tmp_path).install(CARD)
    assert not drop_in.exists()
    assert "systemctl try-restart card.service" in notes.taken()
    SystemUnits(Steps(Notes()), root=tmp_path).uninstall()
    assert files(tmp_path) == set()


@pytest.mark.parametrize("card", ["/home/me/.venv/bin/card", "/root/bin/card", "/run/user/0/card"])
def test_a_command_that_the_system_service_could_not_see_is_refused(tmp_path: Path, card: str) -> None:
    with pytest.raises(ServiceError, match="the system service cannot reach"):
        SystemUnits(Steps(Notes()), root=tmp_path).install(Path(card))
    assert files(tmp_path) == set()


def test_a_link_into_a_home_is_refused_too(tmp_path: Path) -> None:
    link = tmp_path / "card"
    link.symlink_to("/root/bin/card")
    with pytest.raises(ServiceError, match="cannot reach /root/bin/card"):
        SystemUnits(Steps(Notes()), root=tmp_path).install(link)


# launchd.


def test_the_agent_is_loaded_once_and_again_only_when_it_changed(tmp_path: Path) -> None:
    notes = Notes("launchctl print")
    agent = Agent(Steps(notes), tmp_path, tmp_path / "car" / "card.sock")
    agent.install(CARD)
    (file,) = files(tmp_path)
    assert file == "Library/LaunchAgents/io.card.daemon.plist"
    assert plistlib.loads((tmp_path / file).read_bytes())["ProgramArguments"][0] == str(CARD)
    assert (tmp_path / "car").stat().st_mode & 0o777 == 0o700
    (bootstrap,) = notes.taken()
    assert bootstrap.startswith("launchctl bootstrap gui/")
    notes.failing.clear()
    agent.install(CARD)
    assert notes.taken() == []
    agent.install(Path("/opt/other/card"))
    assert [command.split()[1] for command in notes.taken()] == ["bootout", "bootstrap"]
    agent.uninstall()
    assert [command.split()[1] for command in notes.taken()] == ["bootout"]
    assert files(tmp_path) == set()


def test_the_agents_log_is_a_file(tmp_path: Path) -> None:
    notes = Notes()
    Agent(Steps(notes), tmp_path, tmp_path / "card.sock").logs(5, follow=True)
    assert notes.taken() == [f"tail -n 5 -f {tmp_path}/Library/Logs/card.log"]


# The whole command.


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """An environment whose systemctl, loginctl and journalctl note how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("systemctl", "loginctl", "journalctl"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n')
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}


only_linux = pytest.mark.skipif(sys.platform == "darwin", reason="macOS has launchd")


@only_linux
def test_the_service_runs_the_card_command_beside_this_carctl(tmp_path: Path, machine: dict[str, str]) -> None:
    done = carctl("service", "install", env=machine)
    assert (done.returncode, done.stderr) == (0, b"")
    unit = (tmp_path / "config/systemd/user/card.service").read_text()
    assert f'ExecStart="{Path(sys.executable).parent}/card" ' in unit
    assert f"systemctl --user {ENABLE}" in (tmp_path / "calls").read_text().splitlines()


@only_linux
@pytest.mark.parametrize("arguments", [["--system", "service", "logs"], ["service", "logs", "--system"]])
def test_system_may_stand_before_and_after_the_command(
    tmp_path: Path, machine: dict[str, str], arguments: list[str]
) -> None:
    assert carctl(*arguments, env=machine).returncode == 0
    assert (tmp_path / "calls").read_text() == "journalctl --unit card.service --lines 100 --no-pager\n"


@only_linux
def test_a_service_that_does_not_run_is_exit_code_1(tmp_path: Path, machine: dict[str, str]) -> None:
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\nexit 3\n")
    done = carctl("service", "status", env=machine)
    assert done.returncode == 1
    assert b"exit code 3" in done.stderr


@only_linux
def test_a_machine_without_systemd_is_told_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = carctl("service", "status", env={"PATH": str(tmp_path / "bin")})
    assert (done.returncode, done.stderr) == (1, b"carctl: cannot run systemctl: no such file or directory\n")
