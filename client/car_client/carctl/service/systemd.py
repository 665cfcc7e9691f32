"""The service under systemd: units of the user or of the system."""

import os
from pathlib import Path

from car_client.carctl.service import units
from car_client.carctl.service.steps import ServiceError, Steps

SOCKET = "card.socket"
SERVICE = "card.service"
_GPU = "card.service.d/gpu.conf"
# ProtectHome=yes empties these for the system unit.
_HIDDEN = (Path("/home"), Path("/root"), Path("/run/user"))


class UserUnits:
    """Units in the user's own folder, which need no other rights."""

    def __init__(self, steps: Steps, config_home: Path | None = None) -> None:
        self._steps = steps
        home = config_home or Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._folder = home / "systemd" / "user"

    def install(self, card: Path) -> None:
        """Install the units for the command at `card`, enable and start them."""
        changed = {name for name in (SOCKET, SERVICE) if self._write(name, card)}
        _start(self._steps, changed, "--user")
        self._steps.attempt(
            "loginctl", "enable-linger", otherwise="the service ends when you log out (see loginctl enable-linger)"
        )

    def uninstall(self) -> None:
        """Stop and remove the units."""
        _stop(self._steps, [self._folder / SERVICE, self._folder / SOCKET], "--user")

    @property
    def installed(self) -> bool:
        """Whether the units are there."""
        return (self._folder / SOCKET).is_file()

    def start(self) -> None:
        """Start the installed units."""
        self._steps.run("systemctl", "--user", "start", SOCKET, SERVICE)

    def stop(self) -> None:
        """Stop the units until the next start or login."""
        self._steps.run("systemctl", "--user", "stop", SOCKET, SERVICE)

    def status(self) -> None:
        """Show systemd's state of the units."""
        self._steps.show("systemctl", "--user", "status", "--no-pager", SOCKET, SERVICE)

    def logs(self, lines: int, *, follow: bool) -> None:
        """Show the end of the daemon's log."""
        self._steps.show(*_journal(lines, follow, "--user"))

    def _write(self, name: str, card: Path) -> bool:
        return self._steps.write(self._folder / name, units.unit(f"user/{name}", card))


class SystemUnits:
    """Hardened units of the machine; `root` is the root of its file system."""

    def __init__(self, steps: Steps, *, gpu: bool = False, root: Path = Path("/")) -> None:
        self._steps = steps
        self._gpu = gpu
        self._folder = root / "etc" / "systemd" / "system"
        self._group = root / "etc" / "sysusers.d" / "card.conf"

    def install(self, card: Path) -> None:
        """Install the units for the command at `card`, enable and start them."""
        for place in (card, card.resolve()):
            for folder in filter(place.is_relative_to, _HIDDEN):
                raise ServiceError(f"the system service cannot reach {place}: install card outside {folder}, in /opt")
        self._steps.write(self._group, units.unit("sysusers.d/card.conf", card))
        self._steps.run("systemd-sysusers", str(self._group))
        changed = {name for name in (SOCKET, SERVICE) if self._write(name, card)}
        if self._write(_GPU, card) if self._gpu else self._steps.remove(self._folder / _GPU):
            changed.add(SERVICE)
        _start(self._steps, changed)

    def uninstall(self) -> None:
        """Stop and remove the units; models, cost curves and the group stay."""
        _stop(self._steps, [self._folder / _GPU, self._folder / SERVICE, self._folder / SOCKET])
        self._steps.remove(self._group)

    @property
    def installed(self) -> bool:
        """Whether the units are there."""
        return (self._folder / SOCKET).is_file()

    def start(self) -> None:
        """Start the installed units."""
        self._steps.run("systemctl", "start", SOCKET, SERVICE)

    def stop(self) -> None:
        """Stop the units until the next start of the machine."""
        self._steps.run("systemctl", "stop", SOCKET, SERVICE)

    def status(self) -> None:
        """Show systemd's state of the units."""
        self._steps.show("systemctl", "status", "--no-pager", SOCKET, SERVICE)

    def logs(self, lines: int, *, follow: bool) -> None:
        """Show the end of the daemon's log."""
        self._steps.show(*_journal(lines, follow))

    def _write(self, name: str, card: Path) -> bool:
        return self._steps.write(self._folder / name, units.unit(f"system/{name}", card))


def _start(steps: Steps, changed: set[str], *scope: str) -> None:
    steps.run("systemctl", *scope, "daemon-reload")
    if changed:
        # An unchanged socket stays open, so that its clients wait for the new daemon.
        steps.run("systemctl", *scope, "try-restart", *sorted({SERVICE, *changed}))
    steps.run("systemctl", *scope, "enable", "--now", SOCKET, SERVICE)


def _stop(steps: Steps, files: list[Path], *scope: str) -> None:
    if any(file.is_file() for file in files):
        steps.attempt(
            "systemctl", *scope, "disable", "--now", SERVICE, SOCKET, otherwise="systemd may still run the service"
        )
    removed = [file for file in files if steps.remove(file)]
    if removed:
        steps.run("systemctl", *scope, "daemon-reload")


def _journal(lines: int, follow: bool, *scope: str) -> list[str]:
    options = ["--follow"] if follow else ["--no-pager"]
    return ["journalctl", *scope, "--unit", SERVICE, "--lines", str(lines), *options]
