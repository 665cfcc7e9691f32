"""Runs `carctl` as its users do: another process, on pipes or on a terminal."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.client.fake_daemon import PATIENCE_S

_RUN = [sys.executable, "-c", "from car_client.carctl.main import main; main()"]


def carctl(
    *arguments: str | Path,
    input: bytes | None = None,
    env: dict[str, str] | None = None,
    stdout: IO[bytes] | int = subprocess.PIPE,
    shell: str = "",
) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end on pipes; `shell` is a redirection."""
    command = [*_RUN, *map(str, arguments)]
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {shell}', "sh", *command] if shell else command,
        input=input,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **(env or {})},
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

    def read_until(self, text: bytes) -> None:
        """Wait until the text was shown."""
        while text not in self._seen:
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
def carctl_on_terminal(*arguments: str | Path) -> Iterator[Terminal]:
    """Run it with a terminal for standard input, output and errors."""
    master, slave = os.openpty()
    process = subprocess.Popen([*_RUN, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(master)
