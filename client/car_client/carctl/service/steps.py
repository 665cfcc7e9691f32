"""Steps that change the machine: files and commands, a line printed for each; a dry run prints only."""

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import join

from car_client.errors import CardError

Runner = Callable[[Sequence[str], bool], int]
_READABLE = 0o644


class ServiceError(CardError):
    """The service cannot be installed, changed or shown."""


def run_command(command: Sequence[str], quiet: bool) -> int:
    """Run a command, its output shown unless `quiet`; return its exit code. Raises ServiceError if it is missing."""
    output = subprocess.DEVNULL if quiet else None
    try:
        # The commands are constants with paths in them, and run without a shell.
        return subprocess.run(command, stdout=output, stderr=output, check=False).returncode  # noqa: S603
    except OSError as error:
        raise ServiceError(f"cannot run {command[0]}: {os.strerror(error.errno or 0).lower()}") from error


class Steps:
    """Writes and removes files and runs commands; a file that is right already is left alone, without a line."""

    def __init__(self, runner: Runner = run_command, *, dry_run: bool = False) -> None:
        self._runner = runner
        self.dry_run = dry_run

    def write(self, path: Path, content: bytes) -> bool:
        """Write a file unless it has this content; return whether it was written."""
        with suppress(OSError):  # a file that cannot be read is written anew
            if path.read_bytes() == content:
                return False
        self.announce(f"write {path}")
        if not self.dry_run:
            _changing(path, lambda: _replace(path, content))
        return True

    def make_private(self, folder: Path) -> None:
        """Make a folder for its owner alone unless it exists."""
        if folder.is_dir():
            return
        self.announce(f"make {folder}")
        if not self.dry_run:
            _changing(folder, lambda: folder.mkdir(mode=0o700, parents=True))

    def remove(self, path: Path) -> bool:
        """Remove a file; return whether there was one."""
        if not path.is_file():
            return False
        self.announce(f"remove {path}")
        if not self.dry_run:
            _changing(path, path.unlink)
        return True

    def run(self, *command: str) -> None:
        """Run a command; raises ServiceError if it fails."""
        if (code := self._do(command)) != 0:
            raise ServiceError(f"`{join(command)}` failed with exit code {code}")

    def attempt(self, *command: str, otherwise: str) -> None:
        """Run a command that may fail; print the consequence then."""
        try:
            code = self._do(command)
        except ServiceError:
            code = 1
        if code != 0:
            print(f"failed: {otherwise}")

    def succeeds(self, *command: str) -> bool:
        """Return whether a command without effects succeeds; it is run in a dry run too."""
        try:
            return self._runner(command, True) == 0
        except ServiceError:
            return False

    def show(self, *command: str) -> None:
        """Run a command for what it prints; raises ServiceError with its exit code."""
        if (code := self._runner(command, False)) != 0:
            raise ServiceError(f"`{join(command)}` ended with exit code {code}")

    def _do(self, command: Sequence[str]) -> int:
        self.announce(f"run {join(command)}")
        return 0 if self.dry_run else self._runner(command, False)

    def announce(self, step: str) -> None:
        """Print a step, as taken or as it would be."""
        print(f"would {step}" if self.dry_run else step, flush=True)


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically, because a service manager may read it at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(_READABLE)
    new.replace(path)


def _changing(path: Path, change: Callable[[], object]) -> None:
    try:
        change()
    except OSError as error:
        raise ServiceError(f"cannot change {path}: {os.strerror(error.errno or 0).lower()}") from error
