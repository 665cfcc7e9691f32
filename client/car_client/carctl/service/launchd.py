"""The service under launchd: a LaunchAgent of the user."""

import os
from collections.abc import Mapping
from pathlib import Path

from car_client.carctl.service import units
from car_client.carctl.service.steps import Steps
from car_protocol.sockets import socket_path


class LaunchAgent:
    """A LaunchAgent by its label, in the home of the user by default: its file, its log, and launchd's commands."""

    def __init__(self, steps: Steps, label: str, log: str, home: Path | None = None) -> None:
        self._steps = steps
        self._label = label
        home = home or Path.home()
        self._file = home / "Library" / "LaunchAgents" / f"{label}.plist"
        self._log = home / "Library" / "Logs" / log
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{label}"

    def uninstall(self) -> None:
        """Stop and remove the agent."""
        self.stop()
        self._steps.remove(self._file)

    def stop(self) -> None:
        """Stop the agent until the next login."""
        if self._loaded():
            self._steps.run("launchctl", "bootout", self._service)

    def _load(self, paths: Mapping[str, Path], *, anew: bool = False) -> None:
        """Write the agent's file and start it; an agent that runs starts anew if its file changed, or in any case."""
        changed = self._steps.write(self._file, units.agent({**paths, "LOG": self._log}, self._label)) or anew
        loaded = self._loaded()
        if loaded and changed:
            self._steps.run("launchctl", "bootout", self._service)
        if changed or not loaded:
            self._steps.run("launchctl", "bootstrap", self._domain, str(self._file))

    def _loaded(self) -> bool:
        return self._steps.succeeds("launchctl", "print", self._service)


class Agent(LaunchAgent):
    """The agent that listens on the daemon's socket; `home` and `socket` are the user's by default."""

    def __init__(self, steps: Steps, home: Path | None = None, socket: Path | None = None) -> None:
        super().__init__(steps, units.LAUNCHD_LABEL, "card.log", home)
        # An agent is not started from a shell, so no variable of this shell applies.
        self._socket = socket or socket_path(env={})

    def install(self, card: Path) -> None:
        """Install the agent for the command at `card`, and start it."""
        self._steps.make_private(self._socket.parent)
        self._load({"CARD": card, "SOCKET": self._socket})

    @property
    def installed(self) -> bool:
        """Whether the agent is there."""
        return self._file.is_file()

    def start(self) -> None:
        """Start the installed agent."""
        if not self._loaded():
            self._steps.run("launchctl", "bootstrap", self._domain, str(self._file))
        self._steps.run("launchctl", "kickstart", self._service)

    def status(self) -> None:
        """Show launchd's state of the agent."""
        self._steps.show("launchctl", "print", self._service)

    def logs(self, lines: int, *, follow: bool) -> None:
        """Show the end of the daemon's log."""
        self._steps.show("tail", "-n", str(lines), *(["-f"] if follow else []), str(self._log))
