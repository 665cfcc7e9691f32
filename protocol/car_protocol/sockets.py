"""Sockets: the path of the daemon's, the addresses that configurations name, and the process at the other end."""

import ipaddress
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from msgspec import Struct

SYSTEM_SOCKET = Path("/run/car/card.sock")
# sockaddr_un.sun_path with its closing NUL: 108 bytes on Linux, 104 on macOS.
MAX_PATH_BYTES = (108 if sys.platform == "linux" else 104) - 1


def socket_path(flag: str | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """Return the path that a daemon binds and a client tries first."""
    if given := flag or env.get("CAR_SOCKET"):
        return Path(given)
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "car" / "card.sock"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "car" / "card.sock"
    return Path(f"/tmp/car-{os.getuid()}") / "card.sock"  # noqa: S108 - the contract's path; the daemon checks its owner


def candidate_paths(flag: str | None = None, env: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the paths that a client tries in turn: the system service's is the last, unless one was given."""
    first = socket_path(flag, env)
    if flag or env.get("CAR_SOCKET"):
        return [first]
    return [first, SYSTEM_SOCKET]


def fits(path: Path) -> bool:
    """Return whether the platform can bind or connect to a path of this length."""
    return len(os.fsencode(path)) <= MAX_PATH_BYTES


FORMS = "give 127.0.0.1:PORT, [::1]:PORT or unix:/PATH"
_UNIX = "unix:"
_HOST_AND_PORT = re.compile(r"\[([0-9a-fA-F:.]+)\]:(\d{1,5})|([0-9.]+):(\d{1,5})", re.ASCII)
_NAMED = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,64}\]):([0-9]{1,5})")
MOST_PORT = 65_535


class Port(Struct, frozen=True):
    """An address and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Loopback(Port, frozen=True):
    """A port that is reachable from this machine only."""

    @property
    def url(self) -> str:
        """The URL that clients are configured with, without a path."""
        return f"http://{self}"


def read_loopback(text: str, served: str, forms: str = FORMS) -> Path | Loopback:
    """Parse an address; raises ValueError with the accepted forms. `served` says what is for this machine only."""
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX))
        if not path.is_absolute() or "\0" in text:
            raise ValueError(f"{text!r} is not an absolute path: {forms}")
        return path
    found = read_port(text, forms)
    if not ipaddress.ip_address(found.host).is_loopback:
        raise ValueError(f"{found.host} is not a loopback address, and {served}: {forms}")
    return Loopback(found.host, found.port)


def read_port(text: str, forms: str) -> Port:
    """Parse an address with a port; raises ValueError with the accepted forms."""
    found = _HOST_AND_PORT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an address with a port: {forms}")
    host, port = found[1] or found[3], int(found[2] or found[4])
    if not 1 <= port <= MOST_PORT:
        raise ValueError(f"port {port} is out of range: give 1 to {MOST_PORT}")
    try:
        return Port(str(ipaddress.ip_address(host)), port)
    except ValueError as error:
        raise ValueError(f"{host!r} is not an address: {forms}") from error


def read_named_port(text: str, advice: str) -> Port:
    """Parse HOST:PORT, with a machine's name or its address; raises ValueError."""
    found = _NAMED.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= MOST_PORT:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT: {advice}")
    return Port(found[1].strip("[]"), int(found[2]))


# sd_listen_fds(3): the first descriptor, and the variables that are for one process alone.
_FIRST_DESCRIPTOR = 3
_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_MOST_DIGITS = 6


def systemd_descriptors(env: MutableMapping[str, str] = os.environ) -> list[int]:
    """Return the descriptors that systemd passed to this process, and remove their variables from `env`.

    Raises ValueError if their number is unreadable.
    """
    count, process, _ = (env.pop(name, "") for name in _VARIABLES)
    if process != str(os.getpid()):
        return []
    if not (count.isascii() and count.isdigit() and len(count) <= _MOST_DIGITS):
        raise ValueError("LISTEN_FDS is not a number: the service manager passed no usable socket")
    return list(range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)))


_UCRED = struct.Struct("3i")
# macOS: SOL_LOCAL, LOCAL_PEERCRED with a struct xucred (version, uid, ...) and LOCAL_PEERPID.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_LOCAL_PEERPID = 2
_XUCRED = struct.Struct("2I72x")
_PID = struct.Struct("i")


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the peer's user id and process id; raises OSError."""
    if sys.platform == "linux":
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    else:
        _, uid = _XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))
        (pid,) = _PID.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _PID.size))
    return uid, pid
