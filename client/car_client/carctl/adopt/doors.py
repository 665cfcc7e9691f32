"""The door on an adopted port: a unit of this user's systemd, else a process in the background."""

import os
import signal
import subprocess
from pathlib import Path

from car_client.carctl.service import units
from car_client.carctl.service.installed import installed_command
from car_client.carctl.service.steps import ServiceError, Steps
from car_client.carctl.service.up import log_path, wait_for_end

UNIT = "card-adopted@.service"
# A stopped door answers what it accepted, for up to ten minutes (`card-http --adopted`).
_DRAIN_S = 610.0


class UnitDoor:
    """An instance of a unit of this user's systemd for each port, from login to logout."""

    def __init__(self, steps: Steps, config_home: Path | None = None) -> None:
        self._steps = steps
        home = config_home or Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._file = home / "systemd" / "user" / UNIT

    def start(self, port: int) -> str:
        """Install the unit and start its instance."""
        name = UNIT.replace("@", f"@{port}")
        if self._steps.write(self._file, units.unit(f"user/{UNIT}", installed_command("card-http", "http"))):
            self._systemctl("daemon-reload")
        self._systemctl("enable", "--now", name)
        return name

    def end(self, door: int | str) -> bool:
        """Have the instance accept nothing more; return whether it was there."""
        there = self.runs(door)
        self._systemctl("stop", "--no-block", str(door))
        return there

    def runs(self, door: int | str) -> bool:
        """Return whether the instance runs."""
        return self._steps.succeeds("systemctl", "--user", "--quiet", "is-active", str(door))

    def wait(self, door: int | str) -> None:
        """Wait until it answered what it accepted; the file goes with its last instance."""
        self._systemctl("disable", "--now", str(door))
        wanted = self._file.parent / "default.target.wants"
        if not any(wanted.glob(UNIT.replace("@", "@*"))) and self._steps.remove(self._file):
            self._systemctl("daemon-reload")

    def _systemctl(self, *words: str) -> None:
        self._steps.run("systemctl", "--user", *words)


class ProcessDoor:
    """A process in a session of its own, which a closed terminal leaves alone."""

    def __init__(self, socket: str | None) -> None:
        self._flags = [] if socket is None else ["--socket", socket]

    def start(self, port: int) -> int:
        """Start it, with a log beside the daemon's."""
        log = log_path().with_name(f"card-http-{port}.log")
        command = [str(installed_command("card-http", "http")), "--adopted", f"127.0.0.1:{port}", *self._flags]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
                # The command is this installation's own, and runs without a shell.
                process = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            raise ServiceError(f"cannot start {command[0]}: {error.strerror}; log: {log}") from error
        print(f"run {' '.join(command)} (process {process.pid}; log: {log})")
        return process.pid

    def end(self, door: int | str) -> bool:
        """Have it accept nothing more, unless its process is another one by now; return whether it was there."""
        there = self.runs(door)
        if there:
            os.kill(int(door), signal.SIGTERM)
        return there

    def wait(self, door: int | str) -> None:
        """Wait until it answered what it accepted."""
        if self.runs(door) and not wait_for_end(int(door), _DRAIN_S):
            raise ServiceError(f"process {door} still answers after {_DRAIN_S:.0f} s")

    def runs(self, door: int | str) -> bool:
        """Return whether the process is there, and still the door."""
        command = ["ps", "-ww", "-o", "command=", "-p", str(door)]  # -ww: whole, also if $COLUMNS is set
        # The command is a constant with a number in it, and runs without a shell.
        return "--adopted" in subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603


PortDoor = UnitDoor | ProcessDoor


def door_of(steps: Steps, socket: str | None) -> PortDoor:
    """Return the door of this platform."""
    if socket is None and steps.succeeds("systemctl", "--user", "show-environment"):
        return UnitDoor(steps)
    return ProcessDoor(socket)
