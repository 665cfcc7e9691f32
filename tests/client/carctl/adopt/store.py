"""An Ollama store made by hand, as Ollama 0.35 lays it out: manifests that name blobs by digest."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

KIND = "application/vnd.ollama.image."
CONFIG = "application/vnd.docker.container.image.v1+json"


class OllamaStore:
    """A store in `<home>/.ollama/models`."""

    def __init__(self, home: Path) -> None:
        self.folder = home / ".ollama" / "models"
        (self.folder / "blobs").mkdir(parents=True)

    def add(self, name: str, model: Path, *, host: str = "registry.ollama.ai", **texts: Any) -> Path:
        """Add a model of a file, by link; `texts` are its other layers. Returns the blob's path."""
        digest = (
            "sha256:" + hashlib.sha256(str(model).encode()).hexdigest()
        )  # Ollama's is of the content, and long to make
        blob = self._blob(digest)
        if not blob.exists():
            try:
                os.link(model, blob)
            except OSError:
                blob.symlink_to(model)  # on another file system
        layers = [{"mediaType": KIND + "model", "digest": digest, "size": model.stat().st_size}]
        layers += [self._layer(KIND + kind, value) for kind, value in texts.items()]
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
        path, _, tag = name.partition(":")
        file = self.folder / "manifests" / host / (path if "/" in path else f"library/{path}") / (tag or "latest")
        file.parent.mkdir(parents=True, exist_ok=True)
        config = self._layer(CONFIG, {"model_format": "gguf", "model_family": "llama", "os": "linux"})
        file.write_text(json.dumps({**manifest, "config": config, "layers": layers}))
        return blob

    def _layer(self, kind: str, value: Any) -> dict[str, Any]:
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self._blob(digest).write_bytes(data)
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "-")


def digest_of(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return a digest of each file and link below a folder, and the folders, by their paths."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not name.startswith(without or "\0"):
            found[name] = os.readlink(path) if path.is_symlink() else "folder" if path.is_dir() else _hash(path)
    return found


def _hash(path: Path) -> str:
    return "socket" if not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()
