"""Runs `carctl`: as its users do, in another process, on pipes or on a terminal, or here where nobody could tell."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO
from unittest.mock import patch

import psutil

from car_client.carctl.main import run
from tests.client.fake_daemon import PATIENCE_S

_MAIN = "from car_client.carctl.main import main; main()"
_RUN = [sys.executable, "-c", _MAIN]
# What finds and runs the program; nothing else of the environment of who runs the tests reaches it.
_ENV = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "PYTHONPYCACHEPREFIX") if name in os.environ}
# The configuration of the user that runs the tests changes nothing.
_NO_FILES = {"XDG_CONFIG_HOME": "/nonexistent"}


def carctl(
    *arguments: str | Path,
    input: bytes | None = None,
    env: dict[str, str] | None = None,
    stdout: IO[bytes] | int = subprocess.PIPE,
    shell: str = "",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end on pipes, in another process where more than its arguments is given; `shell` is a redirection.

    Starting Python takes far longer than what most commands do.
    """
    if env is None and cwd is None and not shell and stdout is subprocess.PIPE:
        return _carctl_here(list(map(str, arguments)), input or b"")
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


def _carctl_here(arguments: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end in this process, between streams and in an environment of its own."""
    given = TextIOWrapper(BytesIO(data), "utf-8", "surrogateescape")
    output, errors = TextIOWrapper(BytesIO(), "utf-8"), TextIOWrapper(BytesIO(), "utf-8", "backslashreplace")
    with (
        patch.object(sys, "stdin", given),
        patch.dict(os.environ, {**_ENV, **_NO_FILES}, clear=True),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            code = run(arguments)
        except SystemExit as end:  # of the option parser
            code = int(end.code or 0)
    return subprocess.CompletedProcess(arguments, code, _written(output), _written(errors))


def _written(stream: TextIOWrapper) -> bytes:
    """Return what was written to a stream that keeps it."""
    stream.flush()
    kept = stream.buffer
    assert isinstance(kept, BytesIO)
    return kept.getvalue()


@contextmanager
def carctl_on_pipe(*arguments: str | Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run it with pipes to its input and output."""
    command = [*_RUN, *map(str, arguments)]
    whole = None if env is None else {"PATH": os.environ["PATH"], **env}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=whole) as process:
        yield process


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Do what Ctrl-C does to a process that is about to wait."""
    until_waiting(process.pid)
    process.send_signal(signal.SIGINT)


def until_waiting(pid: int) -> None:
    """Return once a process waits: Python sees a signal of the moment before that only when the waiting ends."""
    deadline = time.monotonic() + PATIENCE_S
    while psutil.Process(pid).status() != psutil.STATUS_SLEEPING:
        assert time.monotonic() < deadline


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
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    without: tuple[str, ...] = (),
    cwd: Path | None = None,
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
        cwd=cwd,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(master)
