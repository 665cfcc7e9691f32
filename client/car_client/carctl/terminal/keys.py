"""Single keys, read without waiting for the end of a line."""

import os
import re
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = {b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down"}
# A key that sends several bytes, or any one byte.
_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_READ_BYTES = 64


@contextmanager
def key_by_key(descriptor: int) -> Iterator[None]:
    """Make each key readable at once and without echo; Ctrl-C still interrupts."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def pressed(descriptor: int) -> list[str]:
    """Return the names of the readable keys, "end" once the keyboard is gone."""
    keys = _KEY.findall(os.read(descriptor, _READ_BYTES))
    return [_NAMES.get(key) or key.decode(errors="replace") for key in keys] or ["end"]
