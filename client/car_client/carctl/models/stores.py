"""GGUF files that other programs have downloaded: read where they lie, never copied."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from car_client.carctl.models.files import size_of
from car_client.carctl.models.ollama_store import ollama_folders, ollama_models
from car_protocol.hub import models_folder

_SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.ASCII)
_PROJECTOR = "mmproj"


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
            yield from files_below(store, place)
    for place in ollama_folders(env, home):
        for each in ollama_models(place):
            size = None if each.model is None else size_of(each.model)
            if each.model is not None and size is not None:
                yield Found("Ollama", each.name, each.model, size, each.projector)


def files_below(store: str, folder: Path) -> Iterator[Found]:
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
        size = size_of(path)
        if size is None:
            return None
        total += size
    return total
