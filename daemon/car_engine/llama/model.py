"""A loaded model: its weights, its metadata, its adapters, and the traits of its architecture."""

import contextlib
import ctypes
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from llama_cpp import llama_cpp as binding

from car_base.capacity.curve import DeviceKind
from car_base.capacity.placement import Placement
from car_base.ipc.model_sizes import SequenceBytes
from car_base.ipc.ranges import MAX_SEQUENCES
from car_base.ipc.types import AdapterSet, KvType
from car_engine.llama.devices import host_overrides, tensor_split
from car_engine.llama.library import errors, finds_gpus, is_about


class Traits(NamedTuple):
    """Bounds on the use of an architecture.

    `shares_prefill`: one batch may prefill several sequences. `most_sequences`: the bound on sequences.
    `position_table`: a position beyond the trained context crashes llama.cpp, while other models only get worse.
    """

    shares_prefill: bool = True
    most_sequences: int = MAX_SEQUENCES
    position_table: bool = False


_ORDINARY = Traits()
# For these two llama.cpp stores the state of the first sequence alone if a batch has more than one token of several.
_STORES_ONE = Traits(shares_prefill=False)
# Learned positions are rows of a table; MPT may have one, without it attention only gets worse.
_TABLE = Traits(position_table=True)
_TRAITS = {
    "arwkv7": _STORES_ONE,
    "rwkv6qwen2": _STORES_ONE,
    # llama.cpp mixes up tokens of different sequences, and stores states beside their tensors.
    "plamo2": Traits(most_sequences=1),
    "bert": _TABLE,
    "gpt2": _TABLE,
    "mpt": _TABLE,
    "starcoder": _TABLE,
}


def traits_of(architecture: str) -> Traits:
    """Return the traits of an architecture by llama.cpp's name for it."""
    return _TRAITS.get(architecture, _ORDINARY)


_TEXT_BYTES = 1 << 20
_UNKNOWN = re.compile("unknown model architecture: '([^']*)'")
NO_NUMBERS = "the model computes no numbers (NaN), because its weights are damaged: fetch the file again"


class ModelError(Exception):
    """A model that cannot be served; the message is fit for logs and clients."""


class OutOfReach(ModelError):
    """A model that cannot be served with more memory or fewer layers on GPUs either."""


class ModelMetadata:
    """The metadata of a loaded model's file; llama.cpp exposes all but arrays."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.architecture = self.text("general.architecture") or ""  # by llama.cpp's name

    def text(self, key: str) -> str | None:
        """Return one value as text, None if the file lacks it."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        length = binding.llama_model_meta_val_str(self._handle, key.encode(), buffer, _TEXT_BYTES)
        if length < 0 or length >= _TEXT_BYTES:
            return None
        return buffer.value.decode("utf-8", "replace")

    def own(self, name: str) -> str | None:
        """Return a value of the model's architecture as text, None if the file lacks it."""
        return self.text(f"{self.architecture}.{name}")

    def own_integer(self, name: str, default: int) -> int:
        """Return a number of the model's architecture."""
        with contextlib.suppress(TypeError, ValueError):
            return int(self.own(name) or default)
        return default

    @cached_property
    def chat_template(self) -> str | None:
        """The model's own chat template."""
        return self.text("tokenizer.chat_template")

    @cached_property
    def rerank_template(self) -> str | None:
        """The model's own template for a query and a document."""
        return self.text("tokenizer.chat_template.rerank")

    @cached_property
    def decision_template(self) -> str | None:
        """The model's own template for a question about a state."""
        return self.text("tokenizer.chat_template.systemone")

    @cached_property
    def layers_alike(self) -> bool:
        """True if all layers have the same number of KV heads: otherwise these are an array."""
        return self.own("attention.head_count_kv") is not None


class LlamaModel:
    """The weights of one GGUF file, on one GPU by its number or on all.

    `packed` lets llama.cpp repack them for the cores; `kv_type` is that of its contexts; `progress` gets the loaded
    fraction, 0 to 1, and ends the load by raising. A `placement` wins over `gpu_layers`.
    """

    def __init__(
        self,
        path: str,
        *,
        gpu_layers: int,
        gpu: int | None = None,
        packed: bool = True,
        kv_type: KvType = "f16",
        placement: Placement | None = None,
        progress: Callable[[float], None],
    ) -> None:
        self.kv_type: KvType = kv_type
        binding.llama_backend_init()
        if gpu_layers != 0 and not finds_gpus():
            # llama.cpp itself would silently use the CPU.
            remedy = "set it to 0, or install a GPU build and the GPU's driver"
            sandbox = 'if `card --check` finds a GPU, set sandbox = "off" and report it'
            raise OutOfReach(f"gpu_layers is set, and this llama.cpp finds 0 GPUs: {remedy}; {sandbox}")
        params = binding.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        if placement is not None:
            params.n_gpu_layers = placement.gpu_layers
            # Arrays that llama.cpp reads while it loads.
            split = tensor_split(placement.slots)
            params.tensor_split = split
            overrides = host_overrides(placement.host_experts)
            params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
            # Because llama.cpp would take memory of the devices that hold nothing, too.
            gpu = placement.alone if gpu is None else gpu
        params.use_extra_bufts = packed
        if gpu is not None:
            params.split_mode = binding.LLAMA_SPLIT_MODE_NONE
            params.main_gpu = gpu
        failures: list[Exception] = []
        callback = _progress_callback(progress, failures)
        params.progress_callback = callback
        with errors() as logged:
            self.handle = binding.llama_model_load_from_file(path.encode(), params)
        if failures:
            raise failures[0]
        if not self.handle:
            raise _failure(logged)
        decodes = binding.llama_model_has_decoder(self.handle) and not binding.llama_model_has_encoder(self.handle)
        if not decodes or binding.llama_model_is_diffusion(self.handle):
            raise OutOfReach("the model cannot generate text")
        self.computes_on: DeviceKind = "gpu" if params.n_gpu_layers else "cpu"
        self.vocab = binding.llama_model_get_vocab(self.handle)
        self.metadata = ModelMetadata(self.handle)

    @cached_property
    def trained_context(self) -> int:
        """Tokens of context that the model was trained with."""
        return max(1, int(binding.llama_model_n_ctx_train(self.handle)))

    @cached_property
    def traits(self) -> Traits:
        """Requirements of its architecture."""
        return traits_of(self.metadata.architecture)

    @cached_property
    def most_tokens(self) -> int | None:
        """Tokens of a sequence beyond which llama.cpp crashes; None without such a bound."""
        return self.trained_context if self.traits.position_table else None

    @cached_property
    def keeps_states(self) -> bool:
        """True if sequences have states beside cells, or in place of cells."""
        return bool(binding.llama_model_is_recurrent(self.handle) or binding.llama_model_is_hybrid(self.handle))

    @cached_property
    def keeps_windows(self) -> bool:
        """True if layers look no further than a window, and only the window's cells are kept."""
        return self.window > 0

    @cached_property
    def window(self) -> int:
        """The last tokens that layers with a window see; 0 if there is none."""
        return int(binding.llama_model_n_swa(self.handle))

    @cached_property
    def places_images(self) -> bool:
        """True if each cell has a place in an image beside its position."""
        kinds = (binding.LLAMA_ROPE_TYPE_MROPE, binding.LLAMA_ROPE_TYPE_IMROPE)
        return binding.llama_model_rope_type(self.handle) in kinds

    @cached_property
    def masks(self) -> int:
        """Attention masks of a batch: layers with a sliding window have one of their own."""
        return 2 if self.keeps_windows else 1

    @cached_property
    def ranks(self) -> bool:
        """True if it scores a query and a document, by its metadata."""
        return self.metadata.own("pooling_type") == str(binding.LLAMA_POOLING_TYPE_RANK)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all weights."""
        return int(binding.llama_model_size(self.handle))

    def sequence_bytes(self) -> SequenceBytes:
        """Return the memory of a sequence if all layers attend alike."""
        heads = int(binding.llama_model_n_head(self.handle))
        width = int(binding.llama_model_n_embd(self.handle)) // max(1, heads)
        key = self.metadata.own_integer("attention.key_length", width)
        value = self.metadata.own_integer("attention.value_length", width)
        kv_heads = int(binding.llama_model_n_head_kv(self.handle))
        layers = int(binding.llama_model_n_layer(self.handle))
        return SequenceBytes.attending([kv_heads] * layers, key, value, kv_type=self.kv_type, masks=self.masks)

    def close(self) -> None:
        """Free the weights; contexts have to be free already."""
        binding.llama_model_free(self.handle)


def _failure(logged: list[str]) -> ModelError:
    """Return why a file was not loaded, by what llama.cpp logged."""
    unknown = next((found for line in logged if (found := _UNKNOWN.search(line))), None)
    if unknown is not None:
        return OutOfReach(f"this llama.cpp does not know the model's architecture, {unknown[1]}; a newer one may")
    if is_about(logged, "unable to allocate", "failed to allocate"):
        return ModelError("the memory for the model's weights could not be allocated")
    return ModelError("the file is not a model that llama.cpp can load")


def _progress_callback(progress: Callable[[float], None], failures: list[Exception]) -> Any:
    """Return the callback for llama.cpp; a failure ends the load, because no exception passes through C."""

    def report(done: float, _user_data: object) -> bool:
        try:
            progress(done)
        except Exception as error:  # noqa: BLE001 - raised again once llama.cpp returned
            failures.append(error)
        return not failures

    return binding.llama_progress_callback(report)


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
