"""The memory of a model, estimated by the headers of its files before an engine opens them."""

from typing import TYPE_CHECKING

from msgspec import Struct

from car_base.capacity.capacity import LEAST_CONTEXT
from car_base.host.devices import CPU
from car_base.ipc.model_sizes import LayerSizes, ModelSizes, SequenceBytes
from car_daemon.models.settings import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from car_daemon.gguf.validation import HeaderFacts

# Rows that llama.cpp computes at once: each has its logits, and about as many vectors of floats in between.
_BATCH_ROWS = 512
_VECTORS = 8
_FLOAT_BYTES = 4
# The interpreter, llama.cpp itself and its smaller tables.
_PROCESS_BYTES = 64 << 20


class MemoryEstimate(Struct, frozen=True):
    """Bytes of the weights, of one sequence of each replica with its attention mask, and of everything else.

    `sizes` belong to a model with replicas on GPUs, whose layers count nothing here, and `host_weights` are the bytes
    of these layers that were planned to stay on the host; None without a plan.
    """

    weights: int
    kv: int
    others: int
    sizes: ModelSizes | None = None
    host_weights: int | None = None

    @property
    def total(self) -> int:
        """All bytes; with fewer not even one request can be served."""
        return self.total_with(self.kv)

    def total_with(self, kv: int) -> int:
        """Return all bytes with KV caches and masks of this size."""
        return self.weights + kv + self.others


def estimate_memory(parts: "list[HeaderFacts]", settings: ModelSettings) -> MemoryEstimate:
    """Return the host memory of all replicas of a model of these files; replicas on a GPU use less of it."""
    first = parts[0]
    context = settings.context_tokens or min(first.context_length, LEAST_CONTEXT)
    paths = [*settings.adapters.values(), *([settings.projector] if settings.projector else [])]
    # The check of a model's files reports a missing file.
    beside = sum(path.stat().st_size for path in paths if path.is_file())
    replicas, on_host = len(settings.places), settings.places.count(CPU)
    each = cells_of(first, settings)
    return MemoryEstimate(
        # Processes do not share weights, because most of them are repacked when they are loaded.
        weights=on_host * sum(part.tensor_bytes for part in parts) + replicas * beside,
        kv=on_host * (each.of(context) + each.mask(context)),
        others=replicas * (batch_bytes(first) + _PROCESS_BYTES),
        sizes=sizes_of(parts, settings) if on_host < replicas else None,
    )


def sizes_of(parts: "Sequence[HeaderFacts]", settings: ModelSettings) -> ModelSizes:
    """Return the sizes for a plan on devices; weights outside of layers are the output, or the table of tokens."""
    first = parts[0]
    weights = {number: (size, experts) for part in parts for number, size, experts in part.layers}
    embedding = sum(part.embedding_bytes for part in parts)
    rest = sum(part.tensor_bytes for part in parts) - embedding - sum(size for size, _ in weights.values())
    heads, key, value, windows = first.attention
    layers = []
    for number in range(first.block_count):
        own, states = slice(number, number + 1), first.state_bytes // first.block_count
        cells = SequenceBytes.attending(heads[own], key, value, windows[own], states, settings.kv_type)
        layers.append(LayerSizes(*weights.get(number, (0, 0)), cells))
    # A model without an output of its own computes with a copy of the table.
    output = LayerSizes(max(rest, embedding))
    return ModelSizes((*layers, output), embedding, batch_bytes(first), max(1, first.context_length), first.masks)


def cells_of(first: "HeaderFacts", settings: ModelSettings) -> SequenceBytes:
    """Return the bytes of a sequence of a model, by its first file."""
    return SequenceBytes.attending(*first.attention, first.state_bytes, settings.kv_type, first.masks)


def batch_bytes(first: "HeaderFacts") -> int:
    """Return the bytes of a batch's logits and intermediate results."""
    return _BATCH_ROWS * ((first.vocabulary or 0) + _VECTORS * first.embedding_length) * _FLOAT_BYTES
