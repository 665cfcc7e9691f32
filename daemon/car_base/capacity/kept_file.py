"""The file of what engines measured of one model on one kind of device: the only file that such an engine writes."""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from car_base.host.private_folder import PrivateFolder

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
        """Make the file where it is missing or not one of this user's, and can be."""
        if self._folder is not None:
            with contextlib.suppress(OSError), PrivateFolder(self._folder) as folder:
                folder.make(self._name)

    def read(self, key: str, kind: type[T]) -> T | None:
        """Return a value; None where it is missing or broken."""
        raw = self._values().get(key)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return None if raw is None else msgspec.json.decode(raw, type=kind)
        return None

    def write(self, key: str, value: Struct) -> None:
        """Keep a value, in place of the oldest one where there are 16; nothing where the file cannot be written."""
        others = [(each, raw) for each, raw in self._values().items() if each != key]
        self._write({**dict(others[1 - _MOST_VALUES :]), key: msgspec.Raw(msgspec.json.encode(value))})

    def remove(self, key: str) -> None:
        """Keep a value no more; it stays where the file cannot be written."""
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
