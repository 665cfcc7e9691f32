"""A measured cost curve: what steps of a model cost on this machine, and where it is kept."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct


class Curve(Struct, frozen=True):
    """Seconds of a decode by rows (one of each sequence) and of a prefill by tokens of one prompt."""

    decode: dict[int, float]
    prefill: dict[int, float]


class CurveIdentity(Struct, frozen=True):
    """What a curve depends on; another value means another curve."""

    path: str
    size_bytes: int
    modified_ns: int
    device: str
    threads: int
    library: str


def identity_of(path: str, *, device: str, threads: int, library: str) -> CurveIdentity:
    """Return the identity of a model file's curve."""
    facts = os.stat(path)
    return CurveIdentity(os.path.realpath(path), facts.st_size, facts.st_mtime_ns, device, threads, library)


def remembered(folder: Path | None, identity: CurveIdentity, measure: Callable[[], Curve]) -> Curve:
    """Return the curve kept in `folder`; measure and keep it where there is none or it is broken."""
    if folder is None:
        return measure()
    file = folder / f"{hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:32]}.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Curve)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        curve = measure()
    _keep(file, curve)
    return curve


def _keep(file: Path, curve: Curve) -> None:
    """Write the file whole or not at all; a folder that cannot be written to costs a second at the next start."""
    draft = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(curve))
        draft.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
