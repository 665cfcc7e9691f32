"""Commands typed on a terminal of 80×24, and the text that stays on its screen."""

import fcntl
import os
import re
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping

WIDTH, HEIGHT = 80, 24
# Changes of the cursor and of whole lines: progress bars draw themselves over their last state by them.
_MOVES = re.compile(r"\x1b\[(?:\?25[lh]|\d*K)")


def typed(command: str, env: Mapping[str, str]) -> str:
    """Return a command and its output, with the styles as escape sequences."""
    return f"\x1b[1m$ {command}\x1b[0m\n{screen(output_of(command, env))}"


def output_of(command: str, env: Mapping[str, str]) -> str:
    """Run a command to its end on a terminal and return everything that it wrote."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    process = subprocess.Popen(["bash", "-c", command], stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    written = b"".join(_pieces(master))
    os.close(master)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed: {written.decode()}")
    return written.decode()


def screen(output: str) -> str:
    """Return the lines as they stay: of a line that was drawn again, the last state."""
    lines = _MOVES.sub("", output).replace("\r\n", "\n").split("\n")
    return "\n".join(next(filter(None, reversed(line.split("\r"))), "") for line in lines)


def scrolled(text: str) -> str:
    """Return the rows that a terminal shows once a text has ended: the last ones, above that of the cursor."""
    return "\n".join(text.rstrip("\n").split("\n")[1 - HEIGHT :])


def _pieces(master: int) -> Iterator[bytes]:
    """Yield the output until no process has the terminal open, which Linux reports as an error."""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            return
        if not piece:
            return
        yield piece
