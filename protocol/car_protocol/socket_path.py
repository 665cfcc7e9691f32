"""The path of the daemon's socket, by the contract's order of precedence."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

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
