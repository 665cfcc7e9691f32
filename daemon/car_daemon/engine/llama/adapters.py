"""LoRA adapters of a model, loaded with it and freed with it."""

from collections.abc import Mapping
from typing import Any

from llama_cpp import llama_cpp as binding

from car_daemon.engine.batching.adapter_turns import AdapterSet
from car_daemon.engine.llama.model import LlamaModel, ModelError


class Adapters:
    """The adapters of one model by name; raises ModelError where a file is not an adapter of this model."""

    def __init__(self, model: LlamaModel, paths: Mapping[str, str]) -> None:
        self._handles = {name: _loaded(model, path) for name, path in paths.items()}

    def handles(self, chosen: AdapterSet) -> list[tuple[Any, float]]:
        """Return the handle and scale of each adapter of a set."""
        return [(self._handles[name], scale) for name, scale in chosen]


def _loaded(model: LlamaModel, path: str) -> Any:
    handle = binding.llama_adapter_lora_init(model.handle, path.encode())
    if not handle:
        raise ModelError("an adapter is not one that llama.cpp can load for this model")
    return handle
