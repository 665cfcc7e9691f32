"""The files that keep a measured cost curve, and the parts of devices that loads use, for the next engine."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from car_base.capacity.curve import Curve
from car_base.capacity.device_part import DeviceParts
from car_base.capacity.kept_file import KeptFile
from car_base.ipc.types import KvType

# Another number has all curves measured again: the sizes that a calibration measures have changed so often.
_SIZES = 1


class CurveIdentity(Struct, frozen=True, omit_defaults=True):
    """Everything that a curve depends on: with another value it is measured again."""

    path: str
    size_bytes: int
    modified_ns: int
    device: str
    threads: int
    packed: bool
    library: str
    kv_type: KvType = "f16"
    layers: str = ""
    sizes: int = 0


def identity_of(
    path: str, *, device: str, threads: int, packed: bool, library: str, kv_type: KvType = "f16", layers: str = ""
) -> CurveIdentity:
    """Return the identity of a model file's curve; `layers` names where they are, empty for the host."""
    facts = os.stat(path)
    return CurveIdentity(
        os.path.realpath(path),
        facts.st_size,
        facts.st_mtime_ns,
        device,
        threads,
        packed,
        library,
        kv_type,
        layers,
        _SIZES,
    )


class _Kept:
    """The entry of one identity in the file of its model; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, identity: CurveIdentity) -> None:
        self._file = KeptFile(folder, identity.path, identity.device)
        self._key = hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:32]


class DevicePartsFile(_Kept):
    """The parts of devices that loads of one identity use."""

    def read(self) -> DeviceParts:
        """Return the kept parts; none where the file is missing or broken."""
        return self._file.read(self._key, DeviceParts) or DeviceParts()

    def keep(self, parts: DeviceParts) -> None:
        """Have the next load begin with these parts; where they cannot be kept it fails once and tries again."""
        self._file.write(self._key, parts)


class CurveFile(_Kept):
    """The curve of one identity."""

    def remembered(self, measure: Callable[[], Curve]) -> Curve:
        """Return the kept curve; measure one if the file is missing or implausible, and keep it.

        After a curve that was measured while other programs had the cores the next load measures again.
        """
        kept = self._file.read(self._key, Curve)
        if kept is not None and kept.plausible and not kept.others:
            return kept
        curve = measure()
        # In a folder of another user, or when nothing can be written, the next start measures again, for a second.
        self._file.write(self._key, curve)
        return curve

    def forget(self) -> None:
        """Remove the curve, so that the next start measures; one that stays is removed again by the next engine."""
        self._file.remove(self._key)


class CurveCheck:
    """Removes a kept curve once the steps of this engine are far faster than it, and calls `warn`."""

    def __init__(self, is_overrated: Callable[[], bool], file: CurveFile, warn: Callable[[], None]) -> None:
        self._is_overrated = is_overrated
        self._file = file
        self._warn = warn
        self._forgotten = False  # because one warning is enough

    def look(self) -> None:
        """Compare with the steps so far; cheap enough for every heartbeat."""
        if not self._forgotten and self._is_overrated():
            self._forgotten = True
            self._file.forget()
            self._warn()
