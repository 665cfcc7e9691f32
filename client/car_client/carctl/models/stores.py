"""GGUF files that other programs have downloaded: read where they lie, never copied."""

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from car_protocol.hub import models_folder

_SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.ASCII)
_PROJECTOR = "mmproj"
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_PROJECTOR = "application/vnd.ollama.image.projector"
_MANIFEST_BYTES = 1 << 20
_REGISTRY = "registry.ollama.ai/library/"


class Found(NamedTuple):
    """A model's file: the program that has it, a name, its place, its size in bytes, and its projector."""

    store: str
    name: str
    path: Path
    size: int
    projector: Path | None = None


def find_models(env: Mapping[str, str] = os.environ, home: Path | None = None) -> Iterator[Found]:
    """Yield the models of LM Studio, Ollama, the hub's cache, llama.cpp's cache and card itself."""
    home = home or Path.home()
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(env.get("HF_HOME") or cache / "huggingface") / "hub"
    folders = {
        "LM Studio": (home / ".lmstudio" / "models", cache / "lm-studio" / "models"),
        "Hugging Face": (Path(env["HF_HUB_CACHE"]) if env.get("HF_HUB_CACHE") else hub,),
        "llama.cpp": (
            Path(env["LLAMA_CACHE"]) if env.get("LLAMA_CACHE") else cache / "llama.cpp",
            home / "Library" / "Caches" / "llama.cpp",
        ),
        "card": (models_folder(env) if env.get("XDG_DATA_HOME") else home / ".local" / "share" / "car" / "models",),
    }
    for store, places in folders.items():
        for place in places:
            yield from _files(store, place)
    for place in _ollama_places(env, home):
        yield from _ollama(place)


def _ollama_places(env: Mapping[str, str], home: Path) -> list[Path]:
    """Return the user's store, or the configured one, and that of the service."""
    own = Path(env["OLLAMA_MODELS"]) if env.get("OLLAMA_MODELS") else home / ".ollama" / "models"
    return [own, Path("/usr/share/ollama/.ollama/models")]


def _files(store: str, folder: Path) -> Iterator[Found]:
    """Yield the whole models below a folder, each with the projector beside it; unreadable folders are empty."""
    for parent, _, names in sorted(os.walk(folder)):
        files = sorted(name for name in names if name.lower().endswith(_SUFFIX))
        projectors = [name for name in files if _PROJECTOR in name.lower()]
        for name in files:
            path = Path(parent) / name
            if name in projectors or is_later_part(name):
                continue
            if size := _total(_parts(path)):
                yield Found(store, name[: -len(_SUFFIX)], path, size, _projector(path, projectors))


def _projector(model: Path, projectors: Sequence[str]) -> Path | None:
    """Return the first projector whose name begins as the model's: llama.cpp's cache is one folder for all models."""
    begins = ((name, name[: name.lower().index(_PROJECTOR)]) for name in projectors)
    return next((model.with_name(name) for name, beginning in begins if model.name.startswith(beginning)), None)


def is_later_part(name: str) -> bool:
    """Return whether a file's name numbers it as a part after the first."""
    part = _PART.fullmatch(name)
    return part is not None and int(part["number"]) > 1


def _parts(path: Path) -> list[Path]:
    """Return the paths of all parts that the first one's name declares."""
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    stem, count, suffix = part["stem"], part["count"], part["suffix"]
    return [path.with_name(f"{stem}-{number:05}-of-{count}{suffix}") for number in range(1, int(count) + 1)]


def _total(paths: Iterable[Path]) -> int | None:
    """Return the bytes of all files together; None if a file is missing."""
    total = 0
    for path in paths:
        size = _size(path)
        if size is None:
            return None
        total += size
    return total


def _ollama(folder: Path) -> Iterator[Found]:
    """Yield the models of an Ollama store: manifests name the blobs by digest."""
    manifests = folder / "manifests"
    for parent, _, names in sorted(os.walk(manifests)):
        for name in sorted(names):
            manifest = Path(parent) / name
            layers = _layers(manifest)
            model = _blob(folder, layers.get(_OLLAMA_MODEL))
            size = None if model is None else _size(model)
            if model is not None and size is not None:
                label = f"{manifest.parent.relative_to(manifests).as_posix().removeprefix(_REGISTRY)}:{name}"
                yield Found("Ollama", label, model, size, _blob(folder, layers.get(_OLLAMA_PROJECTOR)))


def _layers(manifest: Path) -> dict[str, str]:
    """Return the digests of a manifest's layers by their type; an unreadable manifest has none."""
    try:
        with manifest.open("rb") as file:
            data: Any = json.loads(file.read(_MANIFEST_BYTES))
        return {str(layer["mediaType"]): str(layer["digest"]) for layer in data["layers"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}  # another program's file: a form that is not known is not a model


def _blob(folder: Path, digest: str | None) -> Path | None:
    kind, _, value = (digest or "").partition(":")
    if not kind.isalnum() or not value.isalnum():
        return None  # not a digest; it could name any file
    path = folder / "blobs" / f"{kind}-{value}"
    return path if _size(path) is not None else None


def _size(path: Path) -> int | None:
    """Return the bytes of a regular file; None for anything else, as a file out of reach."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
