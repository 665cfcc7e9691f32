"""An Ollama store as its manifests lay it out: the names of models, and blobs by digest. Nothing is written."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from car_client.carctl.models.files import size_of

_KIND = "application/vnd.ollama.image."
_MOST_BYTES = 1 << 20
_REGISTRY = "registry.ollama.ai"
_LIBRARY = "library"


class OllamaModel(NamedTuple):
    """A name with its layers: files, and texts; `missing` names a layer whose blob is not there."""

    name: str
    model: Path | None
    projector: Path | None = None
    adapter: Path | None = None
    system: str = ""
    params: Mapping[str, Any] = {}
    template: str = ""
    has_messages: bool = False
    missing: str = ""


def ollama_folders(env: Mapping[str, str], home: Path) -> list[Path]:
    """Return the user's store, or the configured one, and that of the service."""
    own = Path(env["OLLAMA_MODELS"]) if env.get("OLLAMA_MODELS") else home / ".ollama" / "models"
    return [own, Path("/usr/share/ollama/.ollama/models")]


def ollama_models(folder: Path) -> Iterator[OllamaModel]:
    """Yield the models of a store, in the order of their names."""
    manifests = folder / "manifests"
    for parent, _, names in sorted(os.walk(manifests)):
        for name in sorted(names):
            manifest = Path(parent) / name
            parts = manifest.relative_to(manifests).parts
            if len(parts) > 2:  # a host, a name and a tag at least
                yield _model(folder, _name(parts), _layers(manifest))


def _name(parts: tuple[str, ...]) -> str:
    """Return the name as `ollama list` has it: without the registry and the library that it adds by itself."""
    host, *names, tag = parts
    if host != _REGISTRY:
        names.insert(0, host)
    elif names[0] == _LIBRARY and len(names) > 1:
        del names[0]
    return f"{'/'.join(names)}:{tag}"


def _model(folder: Path, name: str, layers: Mapping[str, str]) -> OllamaModel:
    files = {kind: _blob(folder, layers.get(kind)) for kind in ("model", "projector", "adapter")}
    try:
        params = json.loads(_text(folder, layers.get("params")) or "{}")
    except (ValueError, RecursionError):
        params = {}
    return OllamaModel(
        name,
        **files,
        system=_text(folder, layers.get("system")),
        params=params if isinstance(params, dict) else {},
        template=_text(folder, layers.get("template")),
        has_messages="messages" in layers,
        missing=next((kind for kind, path in files.items() if kind in layers and path is None), ""),
    )


def _layers(manifest: Path) -> dict[str, str]:
    """Return the digests of a manifest's layers by their kind; an unreadable manifest has none."""
    try:
        with manifest.open("rb") as file:
            data: Any = json.loads(file.read(_MOST_BYTES))
        return {str(layer["mediaType"]).removeprefix(_KIND): str(layer["digest"]) for layer in data["layers"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}  # another program's file: a form that is not known is not a model


def _path(folder: Path, digest: str | None) -> Path | None:
    kind, _, value = (digest or "").partition(":")
    if not kind.isalnum() or not value.isalnum():
        return None  # not a digest; it could name any file
    return folder / "blobs" / f"{kind}-{value}"


def _blob(folder: Path, digest: str | None) -> Path | None:
    path = _path(folder, digest)
    return path if path is not None and size_of(path) is not None else None


def _text(folder: Path, digest: str | None) -> str:
    """Return the text of a small blob; empty if there is none."""
    path = _blob(folder, digest)
    try:
        with open(path or os.devnull, encoding="utf-8") as file:
            return file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError):
        return ""
