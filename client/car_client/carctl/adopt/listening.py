"""The process that listens on a loopback port, and the answers that it still owes; read from the system."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_LISTEN = "0A"
_LOOPBACK = re.compile(r"[0-9A-F]{6}7F|0{24}01000000")  # as the kernel's tables write 127.0.0.0/8 and ::1
_UNIT = re.compile(r"^0::(.*)$", re.MULTILINE)
# A promise: a stream is not cut while its model gives a token in five seconds.
QUIET_MS = 5000
_FIGURE = re.compile(r"\b(lastsnd|lastrcv|bytes_sent|bytes_received):(\d+)")


class Listening(Struct, frozen=True):
    """A process at a port; `pid` is None if it is another user's, `unit` is systemd's, and `system` the machine's."""

    uid: int
    pid: int | None = None
    arguments: tuple[str, ...] = ()
    folder: str = "/"
    env: dict[str, str] = {}
    unit: str = ""
    system: bool = False
    elsewhere: bool = False  # other machines reach the port


def listening(port: int, variables: Sequence[str], proc: Path = Path("/proc")) -> Listening | None:
    """Return the process at a port, with its environment's variables that begin so; None if the port is free."""
    return (_linux if sys.platform == "linux" else _lsof)(port, variables, proc)


def _linux(port: int, variables: Sequence[str], proc: Path) -> Listening | None:
    rows = [row for name in ("tcp", "tcp6") for row in _rows(proc / "net" / name) if _is_at(row, port)]
    if not rows:
        return None
    uid = int(rows[0][7])
    sockets = {f"socket:[{row[9]}]" for row in rows}
    elsewhere = not all(_LOOPBACK.fullmatch(row[1].rpartition(":")[0]) for row in rows)
    pid = next(_holders(proc, sockets), None)
    if pid is None:
        return Listening(uid, elsewhere=elsewhere)
    return _described(proc / str(pid), Listening(uid, pid, elsewhere=elsewhere), variables)


def _rows(table: Path) -> Iterator[list[str]]:
    try:
        yield from (line.split() for line in table.read_text().splitlines()[1:])
    except OSError:
        return


def _is_at(row: list[str], port: int) -> bool:
    return row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port


def _holders(proc: Path, sockets: set[str]) -> Iterator[int]:
    """Yield the processes that have one of these sockets, among the processes that this user may look into."""
    for process in proc.iterdir():
        if process.name.isdigit() and any(link in sockets for link in _links(process / "fd")):
            yield int(process.name)


def _links(descriptors: Path) -> Iterator[str]:
    # A process may end, and a server at work closes descriptors, while they are read.
    with suppress(OSError):
        for each in descriptors.iterdir():
            with suppress(OSError):
                yield os.readlink(each)


def _described(place: Path, found: Listening, variables: Sequence[str]) -> Listening:
    try:
        words = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        pairs = (place / "environ").read_bytes().decode(errors="replace").split("\0")
        folder = os.readlink(place / "cwd")
        group = _UNIT.search((place / "cgroup").read_text())
    except OSError:
        return found  # it ended meanwhile
    unit, system = unit_of(group[1] if group else "")
    env = dict(each.split("=", 1) for each in pairs if each.startswith(tuple(variables)) and "=" in each)
    return Listening(
        found.uid, found.pid, tuple(words), folder, env, unit=unit, system=system, elsewhere=found.elsewhere
    )


def unit_of(group: str) -> tuple[str, bool]:
    """Return the service of a control group, empty if it is none, and whether it is the machine's."""
    *parents, last = group.split("/")
    if not last.endswith(".service") or last.startswith("user@"):
        return "", False
    return last, not any(each.startswith("user@") for each in parents)


def _lsof(port: int, variables: Sequence[str], proc: Path) -> Listening | None:
    text = _output("lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpun") or ""
    fields = {line[0]: line[1:] for line in text.splitlines() if line}
    if not {"p", "u"} <= fields.keys():
        return None
    words = (_output("ps", "-ww", "-o", "command=", "-p", fields["p"]) or "").split()
    return Listening(int(fields["u"]), int(fields["p"]), tuple(words), elsewhere=fields.get("n", "").startswith("*"))


def owed(port: int) -> int | None:
    """Return how many answers the process at a port still owes; None if this system does not show it.

    A connection owes an answer if the last bytes on it came in, or went out just now.
    """
    text = _output("ss", "-tinH", "state", "established", f"( sport = :{port} )")
    return None if text is None else owed_of(text)


def owed_of(text: str) -> int:
    """Return the number of connections in the output of `ss` that owe an answer."""
    # A line with the figures of a connection is indented, and `ss` leaves out a figure of 0.
    lines = [line for line in text.splitlines() if line[:1].isspace()]
    return sum(_owes({name: int(figure) for name, figure in _FIGURE.findall(line)}) for line in lines)


def _owes(figures: dict[str, int]) -> bool:
    sent, came = figures.get("lastsnd", 0), figures.get("lastrcv", 0)
    # Both ages count from the beginning until bytes go, so that a first request's are often equal.
    first = "bytes_received" in figures and "bytes_sent" not in figures
    return first or came < sent or sent < QUIET_MS


def _output(*command: str) -> str | None:
    try:
        # The command is a constant with a number in it, and runs without a shell.
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return None
    return done.stdout
