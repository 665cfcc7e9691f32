"""Runs `carctl` as its users do: another process, on pipes or on a terminal."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.client.fake_daemon import PATIENCE_S

_MAIN = "from car_client.carctl.main import main; main()"
_RUN = [sys.executable, "-c", _MAIN]
# What finds and runs the program; nothing else of the environment of who runs the tests reaches it.
_ENV = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "PYTHONPYCACHEPREFIX") if name in os.environ}


def carctl(
    *arguments: str | Path,
    input: bytes | None = None,
    env: dict[str, str] | None = None,
    stdout: IO[bytes] | int = subprocess.PIPE,
    shell: str = "",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end on pipes; `shell` is a redirection."""
    command = [*_RUN, *map(str, arguments)]
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {shell}', "sh", *command] if shell else command,
        input=input,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**_ENV, **(env or {})},
        cwd=cwd,
        timeout=PATIENCE_S,
        check=False,
    )


@contextmanager
def carctl_on_pipe(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run it with pipes to its output."""
    command = [*_RUN, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process


class Terminal:
    """A process whose output is a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._seen = b""

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def read_until(self, text: bytes, times: int = 1) -> None:
        """Wait until the text was shown so often since the start."""
        while self._seen.count(text) < times:
            readable, _, _ = select.select([self._master], [], [], PATIENCE_S)
            assert readable, self._seen
            self._seen += os.read(self._master, 4096)

    def end(self) -> bytes:
        """Wait for the end; returns all that was shown, with plain line ends."""
        self.process.wait(PATIENCE_S)
        try:
            while piece := os.read(self._master, 4096):
                self._seen += piece
        except OSError:
            pass  # the other end of the terminal is closed
        return self._seen.replace(b"\r\n", b"\n")


@contextmanager
def carctl_on_terminal(
    *arguments: str | Path, env: dict[str, str] | None = None, without: tuple[str, ...] = ()
) -> Iterator[Terminal]:
    """Run it with a terminal for standard input, output and errors, as if some packages were not installed."""
    master, slave = os.openpty()
    missing = f"import sys; sys.modules.update(dict.fromkeys({without!r})); "
    process = subprocess.Popen(
        [sys.executable, "-c", missing + _MAIN, *map(str, arguments)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**_ENV, **(env or {})},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(master)
