"""Cells in files, and what is reported about them: read, written, or missing."""

import hashlib
from dataclasses import dataclass

from car_base.ipc.types import STORED_SUFFIX
from car_engine.batching.prefix import Prefix

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class StoredPrefix:
    """Cells in a file, and the states after them and after `marks` tokens.

    The namespace of the prefix is that of files (`in_files`).
    """

    prefix: Prefix
    name: str
    size: int
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file: cells with the state after them, and states by the number of tokens before them."""

    cells: memoryview
    states: dict[int, memoryview]


@dataclass(frozen=True, slots=True)
class CellsRead:
    """The outcome of a read; `contents` is None if the file is missing, damaged or of another model."""

    stored: StoredPrefix
    contents: Contents | None
    seconds: float


@dataclass(frozen=True, slots=True)
class CellsStored:
    """The outcome of a write, None if it failed, and the names of the files that were removed for it."""

    stored: StoredPrefix | None
    removed: tuple[str, ...] = ()


def in_files(prefix: Prefix) -> Prefix | None:
    """Return a prefix under the name that its namespace has in files; None for one that ends with its request.

    The name begins with the uid, a person's with its delegate's. The rest is a digest, because salts may be secrets.
    """
    owner, colon, _ = prefix.namespace.partition(":")
    uid = owner.partition("@")[0]
    if not colon or not uid.isdecimal():
        return None
    digest = hashlib.blake2b(prefix.namespace.encode(), digest_size=_DIGEST_BYTES)
    return Prefix(prefix.tokens, f"{uid}-{digest.hexdigest()}", prefix.step)


def file_name(prefix: Prefix) -> str:
    """Return the name of the file for a prefix as `in_files` returns it: the same tokens have the same file."""
    digest = hashlib.blake2b(prefix.tokens.tobytes(), digest_size=_DIGEST_BYTES, salt=prefix.step.to_bytes(8, "little"))
    return f"{prefix.namespace}-{digest.hexdigest()}{STORED_SUFFIX}"
