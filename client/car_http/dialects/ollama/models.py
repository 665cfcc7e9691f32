"""Ollama's discovery: `/api/tags`, `/api/ps` and `/api/show`."""

import hashlib
from datetime import UTC, datetime
from typing import Any

from car_client.results import Model, ModelDetails

# Clients refuse servers before some version of Ollama's; this one has the members that the door sends.
VERSION = "0.13.0"
_ABILITIES = {
    "generate": "completion",
    "images": "vision",
    "tools": "tools",
    "thinking": "thinking",
    "fill": "insert",
    "embed": "embedding",
}
_LOADED = ("ready", "draining")
_MILLION, _BILLION = 10**6, 10**9


def tags(models: list[Model], started: int) -> dict[str, Any]:
    """Return all models."""
    return {"models": [_entry(model, started) for model in models]}


def running(models: list[Model], started: int) -> dict[str, Any]:
    """Return the models that are loaded."""
    loaded = [model for model in models if model.state in _LOADED]
    return {"models": [_entry(model, started) | _memory(model) for model in loaded]}


def shown(details: ModelDetails, started: int) -> dict[str, Any]:
    """Return one model with the facts of its file."""
    model, file = details.model, details.file
    architecture = (file.architecture if file else None) or "unknown"
    info: dict[str, Any] = {"general.architecture": architecture}
    info |= {
        name: value for name, value in (file.metadata if file else {}).items() if not name.startswith("tokenizer.")
    }
    info["general.parameter_count"] = file.parameters if file else None
    info[f"{architecture}.context_length"] = model.context_tokens or (file.context_length if file else None)
    return {
        "modelfile": "",
        "parameters": "",
        "template": (file.chat_template if file else None) or "",
        "details": _details(file.architecture if file else None, file.parameters if file else None),
        "model_info": info,
        "capabilities": [name for ability, name in _ABILITIES.items() if ability in model.can],
        "modified_at": _time(model, started),
    }


def _entry(model: Model, started: int) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _time(model, started),
        "size": model.size_bytes or 0,
        "digest": hashlib.sha256(model.name.encode()).hexdigest(),
        "details": _details(None, None),
        "capabilities": [name for ability, name in _ABILITIES.items() if ability in model.can],
    }


def _memory(model: Model) -> dict[str, Any]:
    on_gpu = model.size_bytes if "gpu" in model.device else 0
    return {"expires_at": "9999-12-31T23:59:59Z", "size_vram": on_gpu or 0, "context_length": model.context_tokens}


def _details(architecture: str | None, parameters: int | None) -> dict[str, Any]:
    family = architecture or ""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _size(parameters),
        "quantization_level": "",
    }


def _size(parameters: int | None) -> str:
    if parameters is None:
        return ""
    return f"{parameters / _BILLION:.1f}B" if parameters >= _BILLION else f"{parameters / _MILLION:.1f}M"


def _time(model: Model, started: int) -> str:
    return datetime.fromtimestamp(int(model.loaded_at or started), UTC).isoformat().replace("+00:00", "Z")
