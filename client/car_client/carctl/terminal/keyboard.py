"""The keyboard: lines with editing, single keys, and Ctrl-C as a cancellation."""

import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

ReadLine = Callable[[], str]


def line_reader(prompt: str, words: Sequence[str]) -> ReadLine:
    """Return a function that reads a line, raising EOFError at the end; `words` complete the first word."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import InMemoryHistory
    except ModuleNotFoundError:
        return lambda: plain_line(prompt)
    # The lines are prompts, which are kept in memory only.
    session: PromptSession[str] = PromptSession(
        prompt,
        history=InMemoryHistory(),
        completer=WordCompleter(list(words), sentence=True),
        complete_while_typing=False,
    )
    return session.prompt


def plain_line(prompt: str) -> str:
    """Read one line without editing; after Ctrl-C or Ctrl-D the cursor is on a new line too."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        raise


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` at the first Ctrl-C within the block; a second one raises KeyboardInterrupt."""

    def once(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        act()

    before = signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
