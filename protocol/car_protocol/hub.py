"""Downloaded models: how one is named, and where its file is."""

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

# As the hub wants both names.
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_SUFFIX = ".gguf"
# File systems take 255 bytes, and a download that is under way has a longer name than the file.
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
        """Return where the file is in a folder of downloaded models."""
        return folder.joinpath(*self.repo.split("/"), *self.path.split("/"))


def hub_file(name: str) -> HubFile:
    """Return the file that `owner/repo/path/file.gguf` names; raises ValueError, which says what is wrong."""
    owner, _, rest = name.partition("/")
    repo, _, path = rest.partition("/")
    if not path or not _NAME.fullmatch(owner) or not _NAME.fullmatch(repo):
        raise ValueError(f"{name[:_SEGMENT_BYTES]!r} is not {FORM}")
    if not path.isprintable() or len(path.encode()) > _PATH_BYTES or not all(map(_is_segment, path.split("/"))):
        raise ValueError(f"{name[:_SEGMENT_BYTES]!r} is not {FORM}: no such path can be in a repository")
    if not path.endswith(_SUFFIX):
        raise ValueError(f"{name!r} is no GGUF file: its name has to end with {_SUFFIX}")
    split = _split(path)
    if split is not None and split[1] != 1:
        raise ValueError(f"{name!r} is a later part of a model: name the first, {_part(split[0], 1, split[2])}")
    return HubFile(f"{owner}/{repo}", path)


def models_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return where this user's downloaded models are."""
    if data := env.get("XDG_DATA_HOME"):
        return Path(data) / "car" / "models"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "car" / "models"
    return Path.home() / ".local" / "share" / "car" / "models"


def _is_segment(segment: str) -> bool:
    """Tell whether a name is usable on every disk; hidden ones are kept for downloads that are under way."""
    return bool(segment) and not segment.startswith(".") and len(segment.encode()) <= _SEGMENT_BYTES


def _split(path: str) -> tuple[str, int, int] | None:
    """Return a part's stem, its number and how many there are; None for a file that is no part."""
    found = _PART.fullmatch(path)
    return (found[1], int(found[2]), int(found[3])) if found and 1 <= int(found[2]) <= int(found[3]) else None


def _part(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}{_SUFFIX}"
