"""The service under launchd: a LaunchAgent of the user."""

import os
from pathlib import Path

from car_client.carctl.service import units
from car_client.carctl.service.steps import Steps
from car_protocol.sockets import socket_path


class Agent:
    """A LaunchAgent that listens on the daemon's socket; `home` and `socket` are the user's by default."""

    def __init__(self, steps: Steps, home: Path | None = None, socket: Path | None = None) -> None:
        self._steps = steps
        home = home or Path.home()
        self._file = home / "Library" / "LaunchAgents" / f"{units.LAUNCHD_LABEL}.plist"
        self._log = home / "Library" / "Logs" / "card.log"
        # An agent is not started from a shell, so no variable of this shell applies.
        self._socket = socket or socket_path(env={})
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{units.LAUNCHD_LABEL}"

    def install(self, card: Path) -> None:
        """Install the agent for the command at `card`, and start it."""
        changed = self._steps.write(self._file, units.agent({"CARD": card, "SOCKET": self._socket, "LOG": self._log}))
        self._steps.make_private(self._socket.parent)
        loaded = self._loaded()
        if loaded and changed:
            self._steps.run("launchctl", "bootout", self._service)
        if changed or not loaded:
            self._steps.run("launchctl", "bootstrap", self._domain, str(self._file))

    def uninstall(self) -> None:
        """Stop and remove the agent."""
        if self._loaded():
            self._steps.run("launchctl", "bootout", self._service)
        self._steps.remove(self._file)

    @property
    def installed(self) -> bool:
        """Whether the agent is there."""
        return self._file.is_file()

    def start(self) -> None:
        """Start the installed agent."""
        if not self._loaded():
            self._steps.run("launchctl", "bootstrap", self._domain, str(self._file))
        self._steps.run("launchctl", "kickstart", self._service)

    def stop(self) -> None:
        """Stop the agent until the next login."""
        if self._loaded():
            self._steps.run("launchctl", "bootout", self._service)

    def status(self) -> None:
        """Show launchd's state of the agent."""
        self._steps.show("launchctl", "print", self._service)

    def logs(self, lines: int, *, follow: bool) -> None:
        """Show the end of the daemon's log."""
        self._steps.show("tail", "-n", str(lines), *(["-f"] if follow else []), str(self._log))

    def _loaded(self) -> bool:
        return self._steps.succeeds("launchctl", "print", self._service)
