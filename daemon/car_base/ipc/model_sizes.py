"""The sizes of a model by its header: a sequence's bytes, and the weights of each layer, for plans on both sides."""

from collections.abc import Iterable

from msgspec import Struct

from car_base.ipc.types import KvType

# llama.cpp rounds the cells of a stream up to a multiple of this.
CELLS = 256
# Bytes of a block of numbers in the KV cache, and the numbers in it.
_BLOCKS: dict[KvType, tuple[int, int]] = {"f16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32)}
# The attention mask of a batch: 512 rows of 16-bit floats, as long as a sequence.
_MASK_BYTES_PER_TOKEN = 512 * 2


def whole_cells(tokens: int) -> int:
    """Return the cells of a sequence of so many tokens."""
    return -(-tokens // CELLS) * CELLS


class SequenceBytes(Struct, frozen=True, array_like=True):
    """Memory of one sequence: each token in the KV cache, and the states, which are there from the start.

    `masks` is the number of attention masks of a batch: layers with a sliding window have one of their own.
    """

    per_token: int
    states: int = 0
    masks: int = 1

    @classmethod
    def attending(
        cls,
        kv_heads: Iterable[int],
        key_length: int,
        value_length: int,
        states: int = 0,
        kv_type: KvType = "f16",
        masks: int = 1,
    ) -> "SequenceBytes":
        """Return the bytes of a sequence in a KV cache of this type; `kv_heads` are the KV heads of each layer."""
        size, numbers = _BLOCKS[kv_type]
        return cls(sum(kv_heads) * (key_length + value_length) * size // numbers, states, masks)

    @classmethod
    def together(cls, models: Iterable["SequenceBytes"]) -> "SequenceBytes":
        """Return the bytes of a sequence that several models compute."""
        listed = list(models)
        per_token, states = sum(each.per_token for each in listed), sum(each.states for each in listed)
        return cls(per_token, states, sum(each.masks for each in listed))

    def of(self, context_tokens: int) -> int:
        """Return the bytes of a sequence of this context."""
        return self.per_token * context_tokens + self.states

    def mask(self, context_tokens: int) -> int:
        """Return the bytes of a batch's attention masks, which all sequences share."""
        return self.masks * _MASK_BYTES_PER_TOKEN * context_tokens if self.per_token else 0

    def number_within(self, size: int, context_tokens: int) -> int:
        """Return the number of sequences of this context within a size in bytes."""
        return max(0, size - self.mask(context_tokens)) // max(1, self.of(context_tokens))

    def tokens_within(self, size: int, sequences: int = 1) -> int:
        """Return the tokens of each of several sequences within a size in bytes, in whole cells."""
        each = sequences * self.per_token + self.mask(1)
        tokens = max(0, size - sequences * self.states) // max(1, each)
        return tokens - tokens % CELLS


class LayerSizes(Struct, frozen=True, array_like=True):
    """A layer, or the output after the last: bytes of weights, the experts' among them, and its part of a sequence."""

    weights: int
    experts: int = 0
    cells: SequenceBytes = SequenceBytes(0)


class ModelSizes(Struct, frozen=True, array_like=True):
    """The sizes of a model; `slots` are its layers and its output, `embedding` stays on the host.

    `buffers` are the bytes that a batch takes on each device that computes, beside its attention masks.
    """

    slots: tuple[LayerSizes, ...]
    embedding: int
    buffers: int
    trained_context: int
    masks: int = 1

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return self.embedding + sum(slot.weights for slot in self.slots)

    def mask(self, tokens: int) -> int:
        """Return the bytes of a batch's masks, as long as a sequence of so many tokens."""
        return SequenceBytes(1, masks=self.masks).mask(tokens)
