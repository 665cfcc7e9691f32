"""Regular files, opened without blocking, and the identity of files' content, without reading all of it."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

MOST_BYTES = 1024 * 1024


class NotRegular(OSError):
    """The path leads to something else than a regular file."""


def open_regular(path: Path) -> int:
    """Return a descriptor for reading a regular file; raises OSError, and NotRegular for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "it is not a regular file")
    return descriptor


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file, b"" for the null device; raises OSError, also for a file that is too long."""
    try:
        descriptor = open_regular(path)
    except NotRegular:
        if path.samefile(os.devnull):
            return b""
        raise
    with open(descriptor, "rb") as file:
        return read_bounded(file, most_bytes)


def read_bounded(file: IO[bytes], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of an open file; raises OSError for a file that is too long."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {most_bytes} bytes")
    return data


# Of each end: the head has a model's metadata, and a file that is written again ends differently.
_HASHED_BYTES = 16 * 1024
# More than the longest header of the usual models, which ends with the vocabulary.
_HEAD_BYTES = 16 * 1024 * 1024
# llama.cpp finds the later parts by this form of the name only. No model has a thousand, and each part that a name
# promises is looked for every second.
_FIRST = re.compile(r"(.*)-00001-of-(00\d{3})\.gguf")


class NotReadable(Exception):
    """A file is missing or cannot be read; the message names it."""


class FileIdentity(NamedTuple):
    """A file's place on its disk, its size and time of change, and a hash of its head and tail."""

    device: int
    inode: int
    size: int
    modified_ns: int
    digest: bytes

    @property
    def place(self) -> tuple[int, int]:
        """The file itself, whatever its content."""
        return self.device, self.inode


# The files of a model's weights, None for each that cannot be read.
Weights = tuple[FileIdentity | None, ...]


def identify(path: Path) -> FileIdentity | None:
    """Return the identity of a regular file; None if it cannot be read."""
    try:
        with open(open_regular(path), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            digest = hashlib.blake2b(os.pread(file.fileno(), _HASHED_BYTES, 0), digest_size=16)
            digest.update(os.pread(file.fileno(), _HASHED_BYTES, max(0, found.st_size - _HASHED_BYTES)))
    except (OSError, ValueError):
        return None
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, digest.digest())


def content_of(files: Iterable[Path]) -> str:
    """Return a text that differs if the size, the beginning or the end of a file does; raises NotReadable.

    It is the same for copies, on other machines too.
    """
    digest = hashlib.sha256()
    for path in files:
        try:
            with open(open_regular(path), "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(size.to_bytes(8, "big"))
                digest.update(hashlib.sha256(os.pread(file.fileno(), _HEAD_BYTES, 0)).digest())
                digest.update(os.pread(file.fileno(), _HASHED_BYTES, max(0, size - _HASHED_BYTES)))
        except (OSError, ValueError) as error:
            raise NotReadable(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return digest.hexdigest()[:32]


def with_parts(path: Path) -> Iterator[Path]:
    """Yield the path of a model and the paths of its later parts."""
    yield path
    if (split := _FIRST.fullmatch(path.name)) is not None:
        yield from (path.with_name(f"{split[1]}-{part:05}-of-{split[2]}.gguf") for part in range(2, int(split[2]) + 1))


class WeightsOverwritten(Exception):
    """The weights changed while requests ran: their results are wrong."""


class OpenedFiles:
    """The files of a model as they were when it was opened; llama.cpp maps them, so an overwritten one changes it."""

    def __init__(self, path: Path) -> None:
        self._found = {part: found for part in with_parts(path) if (found := _written(part)) is not None}

    @property
    def overwritten(self) -> bool:
        """Whether the content of one changed since, by its size and time of change; a replaced file stays as it was."""
        for part, before in self._found.items():
            now = _written(part)
            if now is not None and now != before and now[:2] == before[:2]:
                return True
        return False


def _written(path: Path) -> tuple[int, int, int, int] | None:
    """Return a file's place, size and time of change; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
