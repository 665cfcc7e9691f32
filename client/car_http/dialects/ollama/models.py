"""Ollama's discovery: `/api/tags`, `/api/ps` and `/api/show`, where each alias is a model too."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from car_client.results import Model, ModelDetails
from car_http.catalogue import LATEST
from car_http.dialects.llama_models import format_of
from car_protocol.models import Defaults, ModelFile

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


Files = Mapping[str, ModelFile | None]  # the facts of files, by the models' names


def tagged(name: str) -> str:
    """Return a name with a tag; a colon before the last slash is that of a port."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def tags(models: Sequence[Model], files: Files, started: int) -> dict[str, Any]:
    """Return all models."""
    return {"models": [each for model in models for each in _entries(model, files, started)]}


def running(models: Sequence[Model], files: Files, started: int) -> dict[str, Any]:
    """Return the models that are loaded."""
    loaded = [model for model in models if model.state in _LOADED]
    return {"models": [_entry(model.name, model, files, started) | _memory(model) for model in loaded]}


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
    template, parameters = (file.chat_template if file else None) or "", _parameters(model.defaults)
    return {
        "license": str(info.get("general.license", "")),
        "modelfile": _modelfile(model, template, parameters),
        "parameters": parameters,
        "template": template,
        "system": model.defaults.system or "",
        "details": _details(file),
        "model_info": info,
        "capabilities": [name for ability, name in _ABILITIES.items() if ability in model.can],
        "modified_at": _time(model, started),
    }


def _entries(model: Model, files: Files, started: int) -> list[dict[str, Any]]:
    names = dict.fromkeys(map(tagged, (model.name, *model.aliases)))
    return [_entry(name, model, files, started) for name in names]


def _entry(name: str, model: Model, files: Files, started: int) -> dict[str, Any]:
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": _time(model, started),
        "size": model.size_bytes or 0,
        "digest": hashlib.sha256(model.name.encode()).hexdigest(),
        "details": _details(files.get(model.name)),
        "capabilities": [name for ability, name in _ABILITIES.items() if ability in model.can],
    }


def _modelfile(model: Model, template: str, parameters: str) -> str:
    """Return what a Modelfile of the model would say."""
    texts = {"TEMPLATE": template, "SYSTEM": model.defaults.system}
    lines = [f"FROM {Path(model.path).name}", *(f'{name} """{text}"""' for name, text in texts.items() if text)]
    return "\n".join([*lines, *(f"PARAMETER {line}" for line in parameters.splitlines())])


def _parameters(defaults: Defaults) -> str:
    """Return the values for members that a request leaves out, one a line."""
    named = {"temperature": defaults.temperature, "top_p": defaults.top_p, "num_predict": defaults.max_tokens}
    return "\n".join(f"{name:<30} {value}" for name, value in named.items() if value is not None)


def _memory(model: Model) -> dict[str, Any]:
    on_gpu = model.size_bytes if "gpu" in model.device else 0
    return {"expires_at": "9999-12-31T23:59:59Z", "size_vram": on_gpu or 0, "context_length": model.context_tokens}


def _details(file: ModelFile | None) -> dict[str, Any]:
    family = (file.architecture if file else None) or ""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _size(file.parameters if file else None),
        "quantization_level": format_of(file),
    }


def _size(parameters: int | None) -> str:
    if parameters is None:
        return ""
    return f"{parameters / _BILLION:.1f}B" if parameters >= _BILLION else f"{parameters / _MILLION:.1f}M"


def _time(model: Model, started: int) -> str:
    return datetime.fromtimestamp(int(model.loaded_at or started), UTC).isoformat().replace("+00:00", "Z")
