"""The head of a Ray cluster, as its machines reach it."""

import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from car_client.errors import CardError

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,64}\]):(?P<port>[0-9]{1,5})")
_LARGEST_PORT = 65_535
_TIMEOUT_S = 5.0
# Its import of Ray takes seconds on a busy machine.
_CHECK_S = 60.0
_NOT_CONNECTED = 3
_CHECK = (sys.executable, "-m", "car_placer.ray_head")


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


class Head(NamedTuple):
    """The address of a head."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Return the head of HOST:PORT; raises ValueError."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 < int(found["port"]) <= _LARGEST_PORT:
            raise ValueError(f"{text[:80]!r} is not HOST:PORT: give the address that `ray start --head` prints")
        return cls(found["host"].strip("[]"), int(found["port"]))

    def check(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Connect once and close; raises Unreachable."""
        try:
            socket.create_connection((self.host, self.port), timeout_s).close()
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
            advice = "start Ray on the head, or open this port and those of docs/cluster.md in its firewall"
            raise Unreachable(f"{self}: {reason}: {advice}") from error
