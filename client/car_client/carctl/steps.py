"""What changes the machine: files and commands, one line said of each; a dry run only says them."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join

from car_client.errors import CardError

Runner = Callable[[Sequence[str], bool], int]
_EVERYBODY_READS = 0o644


class ServiceError(CardError):
    """The service cannot be set up or asked; the message says what to do."""


def run_command(command: Sequence[str], quiet: bool) -> int:
    """Run a command, its output shown unless `quiet`, and return its exit code; raises ServiceError without it."""
    output = subprocess.DEVNULL if quiet else None
    try:
        # The commands are this package's own; what varies in them are paths, and no shell reads them.
        return subprocess.run(command, stdout=output, stderr=output, check=False).returncode  # noqa: S603
    except OSError as error:
        raise ServiceError(f"cannot run {command[0]}: {os.strerror(error.errno or 0).lower()}") from error


class Steps:
    """Writes, removes and runs; what is as it should be stays untouched and unsaid."""

    def __init__(self, runner: Runner = run_command, *, dry_run: bool = False) -> None:
        self._runner = runner
        self._dry_run = dry_run

    def write(self, path: Path, content: bytes) -> bool:
        """Give a file this content; tell whether it had another."""
        if _content(path) == content:
            return False
        self._say(f"write {path}")
        if not self._dry_run:
            _changing(path, lambda: _replace(path, content))
        return True

    def make_private(self, folder: Path) -> None:
        """Make a folder that only its owner may look into, where it is missing."""
        if folder.is_dir():
            return
        self._say(f"make {folder}")
        if not self._dry_run:
            _changing(folder, lambda: folder.mkdir(mode=0o700, parents=True))

    def remove(self, path: Path) -> bool:
        """Remove a file; tell whether there was one."""
        if not path.is_file():
            return False
        self._say(f"remove {path}")
        if not self._dry_run:
            _changing(path, path.unlink)
        return True

    def run(self, *command: str) -> None:
        """Run a command that has to succeed."""
        if (code := self._do(command)) != 0:
            raise ServiceError(f"`{join(command)}` failed with exit code {code}")

    def attempt(self, *command: str, otherwise: str) -> None:
        """Run a command that may fail; say what that means."""
        try:
            code = self._do(command)
        except ServiceError:
            code = 1
        if code != 0:
            print(f"that failed: {otherwise}")

    def succeeds(self, *command: str) -> bool:
        """Tell whether a question to the machine is answered with yes; asked in a dry run too."""
        try:
            return self._runner(command, True) == 0
        except ServiceError:
            return False

    def show(self, *command: str) -> None:
        """Run a command for what it prints; raises ServiceError with its exit code."""
        if (code := self._runner(command, False)) != 0:
            raise ServiceError(f"`{join(command)}` ended with exit code {code}")

    def _do(self, command: Sequence[str]) -> int:
        self._say(f"run {join(command)}")
        return 0 if self._dry_run else self._runner(command, False)

    def _say(self, what: str) -> None:
        print(f"would {what}" if self._dry_run else what, flush=True)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _replace(path: Path, content: bytes) -> None:
    """Put a file in place as a whole: a service manager may read it at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(_EVERYBODY_READS)
    new.replace(path)


def _changing(path: Path, change: Callable[[], object]) -> None:
    try:
        change()
    except OSError as error:
        raise ServiceError(f"cannot change {path}: {os.strerror(error.errno or 0).lower()}") from error
