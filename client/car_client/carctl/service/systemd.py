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


class _Units:
    """Units in a folder; `scope` are systemctl's options that name its manager."""

    def __init__(self, steps: Steps, folder: Path, *scope: str) -> None:
        self._steps = steps
        self._folder = folder
        self._scope = scope

    @property
    def installed(self) -> bool:
        """Whether the units are there."""
        return (self._folder / SOCKET).is_file()

    def require(self) -> None:
        """Raise ServiceError if systemd does not answer, before anything is written."""
        if not self._steps.succeeds("systemctl", *self._scope, "show-environment"):
            raise ServiceError("systemd does not answer here, and nothing is installed: `carctl up` runs the daemon")

    def start(self) -> None:
        """Start the installed units."""
        self._systemctl("start", SOCKET, SERVICE)

    def stop(self) -> None:
        """Stop the units until the next start, or begin of their manager."""
        self._systemctl("stop", SOCKET, SERVICE)

    def status(self) -> None:
        """Show systemd's state of the units."""
        self._steps.show("systemctl", *self._scope, "status", "--no-pager", SOCKET, SERVICE)

    def logs(self, lines: int, *, follow: bool) -> None:
        """Show the end of the daemon's log."""
        options = ["--follow"] if follow else ["--no-pager"]
        self._steps.show("journalctl", *self._scope, "--unit", SERVICE, "--lines", str(lines), *options)

    def _enable(self, changed: set[str]) -> None:
        self._systemctl("daemon-reload")
        if changed:
            # An unchanged socket stays open, so that its clients wait for the new daemon.
            self._systemctl("try-restart", *sorted({SERVICE, *changed}))
        self._systemctl("enable", "--now", SOCKET, SERVICE)

    def _remove(self, files: list[Path]) -> None:
        """Stop the units, which may fail, and remove their files."""
        if any(file.is_file() for file in files):
            disable = ("systemctl", *self._scope, "disable", "--now", SERVICE, SOCKET)
            self._steps.attempt(*disable, otherwise="systemd may still run the service")
        removed = [file for file in files if self._steps.remove(file)]
        if removed:
            self._systemctl("daemon-reload")

    def _systemctl(self, *words: str) -> None:
        self._steps.run("systemctl", *self._scope, *words)


class UserUnits(_Units):
    """Units in the user's own folder, which need no other rights."""

    def __init__(self, steps: Steps, config_home: Path | None = None) -> None:
        home = config_home or Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        super().__init__(steps, home / "systemd" / "user", "--user")

    def install(self, card: Path) -> None:
        """Install the units for the command at `card`, enable and start them."""
        changed = {name for name in (SOCKET, SERVICE) if self._write(name, card)}
        self._enable(changed)
        self._steps.attempt(
            "loginctl", "enable-linger", otherwise="the service ends when you log out (see loginctl enable-linger)"
        )

    def uninstall(self) -> None:
        """Stop and remove the units."""
        self._remove([self._folder / SERVICE, self._folder / SOCKET])

    def _write(self, name: str, card: Path) -> bool:
        return self._steps.write(self._folder / name, units.unit(f"user/{name}", card))


class SystemUnits(_Units):
    """Hardened units of the machine; `root` is the root of its file system."""

    def __init__(self, steps: Steps, *, gpu: bool = False, root: Path = Path("/")) -> None:
        super().__init__(steps, root / "etc" / "systemd" / "system")
        self._gpu = gpu
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
        self._enable(changed)

    def uninstall(self) -> None:
        """Stop and remove the units; models, cost curves and the group stay."""
        self._remove([self._folder / _GPU, self._folder / SERVICE, self._folder / SOCKET])
        self._steps.remove(self._group)

    def _write(self, name: str, card: Path) -> bool:
        return self._steps.write(self._folder / name, units.unit(f"system/{name}", card))
