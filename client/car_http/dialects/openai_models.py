"""`GET /v1/models`: the daemon's entries as OpenAI, llama-server and vLLM show them."""

from datetime import UTC, datetime
from typing import Any

from car_client.results import Model

_INPUTS = {"images": "image", "audio": "audio"}


def models_object(models: list[Model], created: int, *, anthropic: bool = False) -> dict[str, Any]:
    """Return the list of models; Anthropic's members stand beside OpenAI's."""
    data = [model_object(model, created, anthropic=anthropic) for model in models]
    ends = {"first_id": models[0].name, "last_id": models[-1].name} if models else {"first_id": None, "last_id": None}
    shown = {"object": "list", "data": data, "has_more": False, **ends}
    # TypeSafe's clients read their own list here; Anthropic's refuse members that they do not know.
    return shown if anthropic else shown | {"models": [_named(model, created) for model in models]}


def model_object(model: Model, created: int, *, anthropic: bool = False) -> dict[str, Any]:
    """Return one model; members of Anthropic, llama-server and vLLM stand beside OpenAI's.

    Anthropic's clients read `capabilities` as an object that names features of its servers: they get none.
    """
    context = model.context_tokens
    since = int(model.loaded_at or created)
    return {
        "id": model.name,
        "object": "model",
        "type": "model",
        "display_name": model.name,
        "created": since,
        "created_at": datetime.fromtimestamp(since, UTC).isoformat(),
        "lifecycle": "active",
        "owned_by": "card",
        "aliases": model.aliases,
        "context_length": context,
        "max_model_len": context,
        "max_input_tokens": context,
        "meta": {"n_ctx": context, "n_ctx_train": context, "size": model.size_bytes},
        "status": {"value": _STATES.get(model.state, model.state)},
        "architecture": {
            "input_modalities": ["text", *(kind for can, kind in _INPUTS.items() if can in model.can)],
            "output_modalities": ["text"] if "generate" in model.can else [],
        },
        "capabilities": None if anthropic else model.can,
    }


def _named(model: Model, created: int) -> dict[str, Any]:
    """Return a model as TypeSafe's clients read it."""
    day = datetime.fromtimestamp(model.loaded_at or created, UTC).date().isoformat()
    return {"name": model.name, "description": ", ".join(model.can), "release_date": day}


# llama-server's names of states.
_STATES = {"ready": "loaded", "draining": "loaded"}
