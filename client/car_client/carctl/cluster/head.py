"""The head of a Ray cluster, as its machines reach it: its address, and the file with its token."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from car_client.errors import CardError
from car_protocol.sockets import Port, read_named_port

_TIMEOUT_S = 5.0
# Its import of Ray takes seconds on a busy machine.
_CHECK_S = 60.0
_NOT_CONNECTED = 3
_CHECK = (sys.executable, "-P", "-m", "car_placer.ray_head")


class Unreachable(CardError):
    """Nothing listens at the head's address, or a firewall drops what is sent to it."""


class NotTaken(CardError):
    """The head takes no node with this machine's token."""


def check_head(address: str, env: Mapping[str, str]) -> None:
    """Have Ray check that the head at an address takes the token of an environment; raises NotTaken."""
    try:
        done = subprocess.run(  # noqa: S603 - card's own program, with an address that was parsed
            [*_CHECK, address], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHECK_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotTaken(f"Ray did not check the head at {address} within {_CHECK_S:.0f} s: try again") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"status {done.returncode}"
        known = done.returncode == _NOT_CONNECTED
        raise NotTaken(reason if known else f"the head at {address} could not be checked: {reason}")


class ClusterHead(Port, frozen=True):
    """The address of a head."""

    @classmethod
    def parse(cls, text: str) -> "ClusterHead":
        """Return the head of HOST:PORT; raises ValueError."""
        found = read_named_port(text, "give the address that `ray start --head` prints")
        return cls(found.host, found.port)

    def check(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Connect once and close; raises Unreachable."""
        try:
            socket.create_connection((self.host, self.port), timeout_s).close()
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
            advice = "start Ray on the head, or open this port and those of docs/howto/cluster.md in its firewall"
            raise Unreachable(f"{self}: {reason}: {advice}") from error


PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MOST_BYTES = 4096


class TokenError(CardError):
    """The token cannot be used."""


def token_path(given: str | None, env: Mapping[str, str]) -> Path:
    """Return the file that is given, else the one that Ray reads."""
    path = given or env.get(PATH_VARIABLE) or str(Path.home() / ".ray" / "auth_token")
    return Path(path).expanduser().absolute()


def check_token(path: Path) -> None:
    """Raise TokenError for a file without a token, and for one that other users may read."""
    try:
        facts = path.stat()
        content = path.read_bytes()[: _MOST_BYTES + 1]
    except OSError as error:
        raise TokenError(f"{path}: {os.strerror(error.errno or 0).lower()}: copy the token file of the head") from error
    if facts.st_mode & _OTHERS:
        mode = stat.S_IMODE(facts.st_mode)
        raise TokenError(f"other users may use {path} (mode {mode:03o}): run chmod 600 on it")
    if not content.strip():
        raise TokenError(f"{path} is empty: on the head, `ray get-auth-token` prints the token")
    if len(content) > _MOST_BYTES:
        raise TokenError(f"{path} has more than {_MOST_BYTES} bytes, so it is not a token: name the right file")


def write_token(path: Path, token: str) -> None:
    """Write a file that its owner alone may read; raises TokenError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(token)
    except OSError as error:
        raise TokenError(f"cannot write {path}: {os.strerror(error.errno or 0).lower()}") from error
