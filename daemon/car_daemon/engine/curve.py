"""A measured cost curve: what steps of a model cost on this machine, and where it is kept."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from car_daemon.engine.batching.costs import StepCosts
from car_daemon.regular_file import read_regular

_Size = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]


class Curve(Struct, frozen=True):
    """Seconds of a decode by rows (one of each sequence) and of a prefill by tokens of one prompt."""

    decode: dict[_Size, _Seconds]
    prefill: dict[_Size, _Seconds]


class CurveIdentity(Struct, frozen=True):
    """What a curve depends on; another value means another curve."""

    path: str
    size_bytes: int
    modified_ns: int
    device: str
    threads: int
    packed: bool
    library: str


def identity_of(path: str, *, device: str, threads: int, packed: bool, library: str) -> CurveIdentity:
    """Return the identity of a model file's curve."""
    facts = os.stat(path)
    return CurveIdentity(os.path.realpath(path), facts.st_size, facts.st_mtime_ns, device, threads, packed, library)


class CurveFile:
    """Where the curve of one identity is kept; nowhere without a folder."""

    def __init__(self, folder: Path | None, identity: CurveIdentity) -> None:
        name = f"{hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:32]}.json"
        self._path = folder / name if folder is not None else None

    def remembered(self, measure: Callable[[], Curve]) -> Curve:
        """Return the curve that is kept; measure and keep it where there is none or it is broken."""
        if self._path is None:
            return measure()
        try:
            return msgspec.json.decode(read_regular(self._path), type=Curve)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            curve = measure()
        _keep(self._path, curve)
        return curve

    def forget(self) -> None:
        """Let the next start measure."""
        if self._path is not None:
            # A folder that cannot be written to keeps what it has: the next engine finds out again.
            with contextlib.suppress(OSError):
                self._path.unlink()


class CurveCheck:
    """Forgets a kept curve once the steps of this engine show it to be far too slow, and says so."""

    def __init__(self, costs: StepCosts, file: CurveFile, warn: Callable[[], None]) -> None:
        self._costs = costs
        self._file = file
        self._warn = warn
        # Mutable state: whether it was forgotten.
        self._forgotten = False

    def look(self) -> None:
        """Look at what was learned since; cheap enough for every heartbeat."""
        if not self._forgotten and self._costs.overrated:
            self._forgotten = True
            self._file.forget()
            self._warn()


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
