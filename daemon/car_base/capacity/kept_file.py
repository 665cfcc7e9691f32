"""Files of what engines measured, kept for the next engine: cost curves, and the parts of devices that loads use."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from car_base.capacity.curve import Curve
from car_base.host.private_folder import PrivateFolder
from car_base.ipc.types import KvType

T = TypeVar("T")
# Numbers of threads, places of layers and forms of cells with which one model is loaded in turn.
_MOST_VALUES = 16


class KeptFile:
    """Values by key, as a JSON object; without a folder nothing is kept.

    The file is written in place, because an engine has the right to write to it and not to make another. One that was
    cut is broken, and its values are measured again. Files and folders of other users are not read.
    """

    def __init__(self, folder: Path | None, model: str, device: str) -> None:
        self._folder = folder
        text = f"{os.path.realpath(model)}\0{device}"
        self._name = f"{hashlib.sha256(os.fsencode(text)).hexdigest()[:32]}.json"

    @property
    def path(self) -> Path | None:
        """The place of the file; None without a folder."""
        return None if self._folder is None else self._folder / self._name

    def make(self) -> None:
        """Make the file if it is missing or not this user's own, and can be made."""
        if self._folder is not None:
            with contextlib.suppress(OSError), PrivateFolder(self._folder) as folder:
                folder.make(self._name)

    def read(self, key: str, kind: type[T]) -> T | None:
        """Return a value; None if it is missing or broken."""
        raw = self._values().get(key)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return None if raw is None else msgspec.json.decode(raw, type=kind)
        return None

    def write(self, key: str, value: Struct) -> None:
        """Keep a value, in place of the oldest one if there are 16; nothing if the file cannot be written."""
        others = [(each, raw) for each, raw in self._values().items() if each != key]
        self._write({**dict(others[1 - _MOST_VALUES :]), key: msgspec.Raw(msgspec.json.encode(value))})

    def remove(self, key: str) -> None:
        """Keep a value no more; it stays if the file cannot be written."""
        values = self._values()
        if values.pop(key, None) is not None:
            self._write(values)

    def _write(self, values: dict[str, msgspec.Raw]) -> None:
        self.make()
        if self._folder is not None:
            with contextlib.suppress(OSError), PrivateFolder(self._folder) as folder:
                folder.overwrite(self._name, msgspec.json.encode(values))

    def _values(self) -> dict[str, msgspec.Raw]:
        if self._folder is not None:
            with (
                contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError),
                PrivateFolder(self._folder) as folder,
            ):
                return msgspec.json.decode(folder.read(self._name), type=dict[str, msgspec.Raw])
        return {}


# The second try of a load plans with this part of what the first one planned with.
SECOND_TRY = 0.8
# Closer to a part that failed than this, no load tries more.
_NEAR = 0.06
# An outcome holds for free memory that differs by at most this part of it.
_LIKE = 0.125
# Outcomes that are kept, such as beside another model and alone.
_MOST = 4

Part = Annotated[float, Meta(gt=0, le=1)]


class LoadOutcome(Struct, frozen=True):
    """The free bytes of devices before a load, the part with which it succeeded, and the least part that failed."""

    free: Annotated[int, Meta(ge=0)]
    part: Part
    failed: Part

    def is_like(self, free: int) -> bool:
        """Return whether about as much was free."""
        return abs(self.free - free) <= _LIKE * self.free


class DeviceParts(Struct, frozen=True):
    """The outcomes of loads of one model whose first try failed, the last one first."""

    # The name is that in the files of earlier versions.
    outcomes: Annotated[list[LoadOutcome], Meta(max_length=_MOST)] = field(name="situations", default_factory=list)

    def first(self, free: int) -> float:
        """Return the part for the first try: all; after a failure half way to the one that failed, until it is near."""
        if (known := self._like(free)) is None:
            return 1.0
        middle = (known.part + known.failed) / 2
        return middle if known.failed - known.part > _NEAR else known.part

    def second(self, free: int, failed: float) -> float:
        """Return the part for the try after one that failed: that of an earlier success, or four fifths."""
        known = self._like(free)
        return known.part if known is not None and known.part < failed else failed * SECOND_TRY

    def after(self, free: int, tried: Sequence[float]) -> "DeviceParts":
        """Return the outcomes with that of a load that tried these parts, whose last part succeeded."""
        known = self._like(free)
        if known is None and len(tried) == 1:
            return self
        failed = tried[-2] if len(tried) > 1 else 1.0 if known is None else known.failed
        others = [each for each in self.outcomes if each is not known]
        return DeviceParts([LoadOutcome(free, tried[-1], failed), *others][:_MOST])

    def _like(self, free: int) -> LoadOutcome | None:
        return next((each for each in self.outcomes if each.is_like(free)), None)


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
    """Return the identity of a model file's curve; `layers` names their places, empty for the host."""
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
        """Return the kept parts; none if the file is missing or broken."""
        return self._file.read(self._key, DeviceParts) or DeviceParts()

    def keep(self, parts: DeviceParts) -> None:
        """Have the next load begin with these parts; if they cannot be kept it fails once and tries again."""
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
