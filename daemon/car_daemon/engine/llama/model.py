"""A loaded model: its weights, its metadata and what follows from them."""

import contextlib
import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import Any

from llama_cpp import llama_cpp as binding

from car_daemon.engine.llama.library import count_gpus
from car_daemon.engine.llama.traits import Traits, traits_of

_F16_BYTES = 2
_TEXT_BYTES = 1 << 20


class ModelError(Exception):
    """The model cannot be served; the message is a fixed text."""


class LlamaModel:
    """The weights of one GGUF file, on the GPU of a number or on all.

    `packed` lets llama.cpp pack them anew for the cores; `progress` hears shares of 0 to 1 while they load, and
    ends the load by raising.
    """

    def __init__(
        self,
        path: str,
        *,
        gpu_layers: int,
        gpu: int | None = None,
        packed: bool = True,
        progress: Callable[[float], None],
    ) -> None:
        binding.llama_backend_init()
        if gpu_layers != 0 and not binding.llama_supports_gpu_offload():
            # llama.cpp itself would go on with the CPU, without a word.
            raise ModelError("gpu_layers is set, and this llama.cpp sees no GPU")
        params = binding.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = packed
        if gpu is not None:
            if gpu >= count_gpus():
                raise ModelError("there is no GPU of that number")
            params.split_mode = binding.LLAMA_SPLIT_MODE_NONE
            params.main_gpu = gpu
        failures: list[Exception] = []
        callback = _progress_callback(progress, failures)
        params.progress_callback = callback
        self.handle = binding.llama_model_load_from_file(path.encode(), params)
        if failures:
            raise failures[0]
        if not self.handle:
            raise ModelError("the file is not a model that llama.cpp can load")
        if not binding.llama_model_has_decoder(self.handle) or binding.llama_model_has_encoder(self.handle):
            raise ModelError("the model cannot generate text")
        self.vocab = binding.llama_model_get_vocab(self.handle)

    @cached_property
    def trained_context(self) -> int:
        """Tokens of context that the model was trained with."""
        return max(1, int(binding.llama_model_n_ctx_train(self.handle)))

    @cached_property
    def architecture(self) -> str:
        """What llama.cpp calls its architecture."""
        return self.metadata("general.architecture") or ""

    @cached_property
    def traits(self) -> Traits:
        """What its architecture needs."""
        return traits_of(self.architecture)

    @cached_property
    def most_tokens(self) -> int | None:
        """The tokens beyond which a sequence ends the process; None where it does not."""
        return self.trained_context if self.traits.position_table else None

    @cached_property
    def keeps_states(self) -> bool:
        """Whether sequences have states besides cells, or in place of them."""
        return bool(binding.llama_model_is_recurrent(self.handle) or binding.llama_model_is_hybrid(self.handle))

    @cached_property
    def ranks(self) -> bool:
        """Whether it scores pairs of texts, by its metadata."""
        return self.metadata(f"{self.architecture}.pooling_type") == str(binding.LLAMA_POOLING_TYPE_RANK)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all weights."""
        return int(binding.llama_model_size(self.handle))

    @cached_property
    def chat_template(self) -> str | None:
        """The model's own chat template, from its metadata."""
        return self.metadata("tokenizer.chat_template")

    def kv_bytes(self, context_tokens: int) -> int:
        """Bytes of KV cache of one sequence, as 16-bit floats, where all layers attend."""
        heads = int(binding.llama_model_n_head(self.handle))
        width = int(binding.llama_model_n_embd(self.handle)) // max(1, heads)
        key = self._integer(f"{self.architecture}.attention.key_length", width)
        value = self._integer(f"{self.architecture}.attention.value_length", width)
        layers = int(binding.llama_model_n_layer(self.handle))
        kv_heads = int(binding.llama_model_n_head_kv(self.handle))
        return layers * kv_heads * (key + value) * _F16_BYTES * context_tokens

    def metadata(self, key: str) -> str | None:
        """Return one metadata value as text; None where the file has none."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        length = binding.llama_model_meta_val_str(self.handle, key.encode(), buffer, _TEXT_BYTES)
        if length < 0 or length >= _TEXT_BYTES:
            return None
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Free the weights; contexts have to be free already."""
        binding.llama_model_free(self.handle)

    def _integer(self, key: str, default: int) -> int:
        with contextlib.suppress(TypeError, ValueError):
            return int(self.metadata(key) or default)
        return default


def _progress_callback(progress: Callable[[float], None], failures: list[Exception]) -> Any:
    """Return what llama.cpp calls; a failure ends the load, since no exception gets through C."""

    def report(done: float, _user_data: object) -> bool:
        try:
            progress(done)
        except Exception as error:  # noqa: BLE001 - raised again once llama.cpp returned
            failures.append(error)
        return not failures

    return binding.llama_progress_callback(report)
