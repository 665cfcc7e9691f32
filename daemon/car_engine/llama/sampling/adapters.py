"""LoRA adapters of a model; llama.cpp frees them with it."""

from collections.abc import Mapping
from typing import Any

from llama_cpp import llama_cpp as binding

from car_base.ipc.types import AdapterSet
from car_engine.llama.model import LlamaModel, ModelError


class Adapters:
    """The adapters of one model by name; raises ModelError for a file that is not an adapter of this model."""

    def __init__(self, model: LlamaModel, paths: Mapping[str, str]) -> None:
        self._handles: dict[str, Any] = {}
        for name, path in paths.items():
            handle = binding.llama_adapter_lora_init(model.handle, path.encode())
            if not handle:
                raise ModelError("an adapter's file is not one that llama.cpp can load for this model")
            self._handles[name] = handle

    def handles(self, chosen: AdapterSet) -> list[tuple[Any, float]]:
        """Return the handle and scale of each adapter of a set."""
        return [(self._handles[name], scale) for name, scale in chosen]
