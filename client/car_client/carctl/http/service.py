"""The HTTP door as a service of this user: socket-activated units of systemd, or a LaunchAgent; its `GET /health`."""

import http.client
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from car_client.carctl.http.machine import EVERYWHERE
from car_client.carctl.service import units
from car_client.carctl.service.launchd import LaunchAgent
from car_client.carctl.service.steps import Steps
from car_client.door.certificate import pinning
from car_client.door.settings import Address, TlsPort, default_socket
from car_protocol.sockets import Port

SOCKET = "card-http.socket"
SERVICE = "card-http.service"
LABEL = "io.card.http"


def manager_of(steps: Steps) -> "DoorUnits | DoorAgent | None":
    """Return the service manager of this platform; None if no service of a user can run."""
    if sys.platform == "darwin":
        return DoorAgent(steps)
    return DoorUnits(steps) if steps.succeeds("systemctl", "--user", "show-environment") else None


class DoorUnits:
    """Units in the user's own folder: systemd listens, and the first connection starts the door."""

    def __init__(self, steps: Steps, config_home: Path | None = None) -> None:
        self._steps = steps
        home = config_home or Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self._folder = home / "systemd" / "user"

    def enable(self, command: Path, addresses: Sequence[Address], *, renewed: bool = False) -> None:
        """Install the units for the command and its addresses, enable and start the socket.

        A door that runs is stopped if its settings or its certificate are `renewed`; the next connection starts it.
        """
        contents = {
            SOCKET: units.listening(f"user/{SOCKET}", [_stream(each) for each in addresses]),
            SERVICE: units.unit(f"user/{SERVICE}", command),
        }
        changed = [name for name, content in contents.items() if self._steps.write(self._folder / name, content)]
        if changed:
            self._systemctl("daemon-reload")
            # A socket unit takes new addresses only while its service is stopped.
            self._systemctl("stop", SERVICE, SOCKET)
        elif renewed:
            self._systemctl("stop", SERVICE)
        self._systemctl("enable", "--now", SOCKET)

    def disable(self) -> None:
        """Stop and remove the units."""
        files = [self._folder / name for name in (SOCKET, SERVICE)]
        if not any(file.is_file() for file in files):
            return
        self._systemctl("disable", "--now", SOCKET, SERVICE)
        for file in files:
            self._steps.remove(file)
        self._systemctl("daemon-reload")

    def _systemctl(self, *arguments: str) -> None:
        self._steps.run("systemctl", "--user", *arguments)


class DoorAgent(LaunchAgent):
    """A LaunchAgent that runs the door from login to logout; the door binds its own sockets."""

    def __init__(self, steps: Steps, home: Path | None = None) -> None:
        super().__init__(steps, LABEL, "card-http.log", home)

    def enable(self, command: Path, addresses: Sequence[Address], *, renewed: bool = False) -> None:
        """Install the agent for the command and start it anew in any case, because card.toml has its addresses."""
        self._load({"CARD": command}, anew=True)

    def disable(self) -> None:
        """Stop and remove the agent."""
        self.uninstall()


def _stream(address: Address) -> str:
    """Return an address in systemd's notation."""
    if isinstance(address, Port):
        return str(address)
    if address == default_socket():
        return "%t/car/http.sock" if os.environ.get("XDG_RUNTIME_DIR") else str(address)
    return str(address).replace("%", "%%")


# A door that its socket unit starts has its Python to import first.
_TIMEOUT_S = 10.0
_ANSWERS = {200: "answers", 503: "answers, but no daemon does: carctl up starts one"}


def health(address: Address, certificate: Path) -> tuple[bool, str]:
    """Return whether the door and its daemon answer at an address, and the state in words.

    Raises CertificateError.
    """
    connection = _connection(address, certificate)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return False, f"does not answer ({getattr(error, 'strerror', None) or type(error).__name__})"
    finally:
        connection.close()
    return status in _ANSWERS and status < http.client.BAD_REQUEST, _ANSWERS.get(status, f"answers {status}: not card")


def _connection(address: Address, certificate: Path) -> http.client.HTTPConnection:
    if isinstance(address, Path):
        return _UnixConnection(str(address))
    host = EVERYWHERE.get(address.host, address.host)
    if isinstance(address, TlsPort):
        return http.client.HTTPSConnection(host, address.port, timeout=_TIMEOUT_S, context=pinning(certificate))
    return http.client.HTTPConnection(host, address.port, timeout=_TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
