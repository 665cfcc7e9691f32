"""The sizes of a model by its headers, for a plan of its layers on devices."""

from typing import TYPE_CHECKING

from car_daemon.capacity.capacity import SequenceBytes
from car_daemon.ipc.frames import HeaderSizes, LayerBytes
from car_daemon.models.memory_estimate import batch_bytes
from car_daemon.models.settings import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from car_daemon.gguf.validation import Facts


def sizes_of(parts: "Sequence[Facts]", settings: ModelSettings) -> HeaderSizes:
    """Return the sizes of a model of these files; weights outside of layers are its output, or its table of tokens."""
    first = parts[0]
    weights = {number: (size, experts) for part in parts for number, size, experts in part.layers}
    embedding = sum(part.embedding_bytes for part in parts)
    rest = sum(part.tensor_bytes for part in parts) - embedding - sum(size for size, _ in weights.values())
    heads, key, value = first.attention
    layers = []
    for number in range(first.block_count):
        own_heads = heads[number : number + 1]
        cells = SequenceBytes.attending(own_heads, key, value, kv_type=settings.kv_type).per_token
        layers.append(LayerBytes(*weights.get(number, (0, 0)), cells, first.state_bytes // first.block_count))
    # A model without an output of its own computes with a copy of the table.
    output = LayerBytes(max(rest, embedding))
    return HeaderSizes([*layers, output], embedding, batch_bytes(first), max(1, first.context_length))
