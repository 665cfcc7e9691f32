"""Downloaded models: their names, and the places of their files."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PREFIX = "hf:"
# The system service's state directory, as its unit names it.
SYSTEM_MODELS = Path("/var/lib/car/models")
FORM = "owner/repo/path/file.gguf"

# The hub's rule for both names.
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_SUFFIX = ".gguf"
# File systems allow 255 bytes, and the name of an unfinished download is longer than the file's.
_SEGMENT_BYTES = 200
_PATH_BYTES = 1000
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class HubFile(NamedTuple):
    """A GGUF file of a model repository on the Hugging Face hub; `path` is the one within the repository."""

    repo: str
    path: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}/{self.path}"

    def parts(self) -> "list[HubFile]":
        """Return all files of a model that is split, itself first."""
        split = _split(self.path)
        if split is None:
            return [self]
        stem, _, count = split
        return [HubFile(self.repo, _part(stem, number, count)) for number in range(1, count + 1)]

    def under(self, folder: Path) -> Path:
        """Return the file's path in a folder of downloaded models."""
        return folder.joinpath(*self.repo.split("/"), *self.path.split("/"))


def hub_file(name: str) -> HubFile:
    """Return the file that `owner/repo/path/file.gguf` names; raises ValueError with the reason."""
    owner, _, rest = name.partition("/")
    repo, _, path = rest.partition("/")
    if not path or not _NAME.fullmatch(owner) or not _NAME.fullmatch(repo):
        raise ValueError(f"{name[:_SEGMENT_BYTES]!r} is not {FORM}")
    if not path.isprintable() or len(path.encode()) > _PATH_BYTES or not all(map(_is_segment, path.split("/"))):
        raise ValueError(f"{name[:_SEGMENT_BYTES]!r} is not {FORM}: no such path can be in a repository")
    if not path.endswith(_SUFFIX):
        raise ValueError(f"{name!r} is not a GGUF file: its name has to end with {_SUFFIX}")
    split = _split(path)
    if split is not None and split[1] != 1:
        raise ValueError(f"{name!r} is a later part of a model: name the first, {_part(split[0], 1, split[2])}")
    return HubFile(f"{owner}/{repo}", path)


def models_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's downloaded models."""
    if data := env.get("XDG_DATA_HOME"):
        return Path(data) / "car" / "models"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "car" / "models"
    return Path.home() / ".local" / "share" / "car" / "models"


def _is_segment(segment: str) -> bool:
    """Return whether a name is valid on every disk; hidden names are reserved for unfinished downloads."""
    return bool(segment) and not segment.startswith(".") and len(segment.encode()) <= _SEGMENT_BYTES


def _split(path: str) -> tuple[str, int, int] | None:
    """Return the stem and number of a part and the number of parts; None for a file that is not a part."""
    found = _PART.fullmatch(path)
    return (found[1], int(found[2]), int(found[3])) if found and 1 <= int(found[2]) <= int(found[3]) else None


def _part(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}{_SUFFIX}"
