"""The files that keep a measured cost curve, and the parts of devices that loads use, for the next engine."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from car_daemon.capacity.curve import Curve
from car_daemon.capacity.device_part import DeviceParts
from car_daemon.host.private_folder import PrivateFolder
from car_daemon.ipc.types import KvType

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


def _path_of(folder: Path | None, identity: CurveIdentity) -> Path | None:
    name = f"{hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:32]}.json"
    return folder / name if folder is not None else None


class DevicePartsFile:
    """The file of the parts of devices that loads of one identity use; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, identity: CurveIdentity) -> None:
        self._path = _path_of(folder, identity)

    def read(self) -> DeviceParts:
        """Return the kept parts; none where the file is missing or broken."""
        if self._path is not None:
            with (
                contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError),
                PrivateFolder(self._path.parent) as folder,
            ):
                return msgspec.json.decode(folder.read(self._path.name), type=DeviceParts)
        return DeviceParts()

    def keep(self, parts: DeviceParts) -> None:
        """Have the next load begin with these parts."""
        if self._path is not None:
            # Where nothing can be written the next load fails once and tries again, like this one.
            with contextlib.suppress(OSError), PrivateFolder(self._path.parent) as folder:
                folder.write(self._path.name, msgspec.json.encode(parts))


class CurveFile:
    """The file of one identity's curve; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, identity: CurveIdentity) -> None:
        self._path = _path_of(folder, identity)

    def remembered(self, measure: Callable[[], Curve]) -> Curve:
        """Return the kept curve; measure and keep one where the file is missing or broken."""
        if self._path is None:
            return measure()
        # In a folder of another user, or where nothing can be written, the next start measures again, for a second.
        with (
            contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError),
            PrivateFolder(self._path.parent) as folder,
        ):
            return msgspec.json.decode(folder.read(self._path.name), type=Curve)
        curve = measure()
        with contextlib.suppress(OSError), PrivateFolder(self._path.parent) as folder:
            folder.write(self._path.name, msgspec.json.encode(curve))
        return curve

    def forget(self) -> None:
        """Remove the file, so that the next start measures."""
        if self._path is not None:
            # In a folder that cannot be written to the curve stays, and the next engine removes it again.
            with contextlib.suppress(OSError):
                self._path.unlink()


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
