"""llama-server's `/props` and `/slots`, and LM Studio's `/api/v0/models`: what they say of models."""

from pathlib import Path
from typing import Any

from car_client.formats import FORMATS
from car_client.results import Capacity, Model, ModelDetails
from car_protocol import __version__
from car_protocol.models import ModelFile

_LOADED = ("ready", "draining")


def props_object(details: ModelDetails) -> dict[str, Any]:
    """Return llama-server's properties of one model."""
    model, file, defaults = details.model, details.file, details.model.defaults
    params = {"temperature": defaults.temperature, "top_p": defaults.top_p, "n_predict": defaults.max_tokens or -1}
    return {
        "default_generation_settings": {
            "n_ctx": model.context_tokens,
            "params": {name: value for name, value in params.items() if value is not None},
        },
        "total_slots": model.capacity,
        "model_alias": model.name,
        "model_path": Path(model.path).name,
        "modalities": {"vision": "images" in model.can, "audio": "audio" in model.can},
        "chat_template": (file.chat_template if file else None) or "",
        "chat_template_caps": {
            "supports_tools": "tools" in model.can,
            "supports_tool_calls": "tools" in model.can,
            "supports_parallel_tool_calls": "tools" in model.can,
            "supports_system_role": "chat" in model.can,
        },
        "build_info": f"card {__version__}",
        "is_sleeping": model.state == "unloaded",
    }


def slots(capacity: Capacity) -> list[dict[str, Any]]:
    """Return the sequences of one model; the first sequences stand for all that are leased."""
    return [
        {
            "id": place,
            "n_ctx": capacity.context_tokens,
            "speculative": False,
            "is_processing": place < capacity.in_use,
        }
        for place in range(capacity.capacity)
    ]


def lm_studio_object(model: Model, file: ModelFile | None) -> dict[str, Any]:
    """Return one model as LM Studio shows it."""
    kind = "embeddings" if "generate" not in model.can and "embed" in model.can else "llm"
    loaded = model.state in _LOADED
    shown = {
        "id": model.name,
        "object": "model",
        "type": "vlm" if "images" in model.can else kind,
        "publisher": "card",
        "arch": (file.architecture if file else None) or "",
        "compatibility_type": "gguf",
        "quantization": format_of(file),
        "state": "loaded" if loaded else "not-loaded",
        "max_context_length": (file.context_length if file else None) or model.context_tokens,
        "capabilities": ["tool_use"] if "tools" in model.can else [],
    }
    return shown | {"loaded_context_length": model.context_tokens} if loaded else shown


def format_of(file: ModelFile | None) -> str:
    """Return the name of the format of a file's weights, empty if it has none."""
    return "" if file is None or file.file_type is None else FORMATS.get(file.file_type, "")
