"""The sizes of a model by its header: a sequence's bytes, and the weights of each layer, for plans on both sides."""

from collections.abc import Iterable
from itertools import zip_longest
from math import inf

from msgspec import Struct

from car_base.ipc.types import KvType

# llama.cpp rounds the cells of a stream up to a multiple of this.
CELLS = 256
# Bytes of a block of numbers in the KV cache, and the numbers in it.
_BLOCKS: dict[KvType, tuple[int, int]] = {"f16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32)}
# Rows of a graph: attention masks have as many, and a window has as many cells beside the cells that are seen.
GRAPH_ROWS = 512
# Rows by which states go back at most, with a guess in each: more guesses in a decode bring little, and each takes a
# state of every sequence.
MOST_ROLLBACK = 7
_MASK_BYTES_PER_TOKEN = GRAPH_ROWS * 2  # 16-bit floats


def whole_cells(tokens: int) -> int:
    """Return the cells of a sequence of so many tokens."""
    return -(-tokens // CELLS) * CELLS


class SequenceBytes(Struct, frozen=True, array_like=True):
    """Memory of one sequence: each token in the KV cache, and the states, which are there from the start.

    `masks` is the number of attention masks of a batch: layers with a sliding window have one of their own. They keep
    `windowed` bytes of each of the last `window` tokens.
    """

    per_token: int
    states: int = 0
    masks: int = 1
    windowed: int = 0
    window: int = 0

    @classmethod
    def attending(
        cls,
        kv_heads: Iterable[int],
        key_length: int,
        value_length: int,
        windows: Iterable[int] = (),
        states: int = 0,
        kv_type: KvType = "f16",
        masks: int = 1,
    ) -> "SequenceBytes":
        """Return the bytes of a sequence in a KV cache of this type.

        `kv_heads` are the KV heads of each layer, `windows` the last tokens that it sees, 0 for all.
        """
        size, numbers = _BLOCKS[kv_type]
        heads = {False: 0, True: 0}  # by whether the layer has a window
        windows = tuple(windows)
        for count, window in zip_longest(kv_heads, windows, fillvalue=0):
            heads[window > 0] += count
        whole, windowed = (count * (key_length + value_length) * size // numbers for count in heads.values())
        return cls(whole, states, masks, windowed, max(windows, default=0))

    @classmethod
    def together(cls, models: Iterable["SequenceBytes"]) -> "SequenceBytes":
        """Return the bytes of a sequence that several models compute."""
        listed = list(models)
        return cls(
            sum(each.per_token for each in listed),
            sum(each.states for each in listed),
            sum(each.masks for each in listed),
            sum(each.windowed for each in listed),
            max((each.window for each in listed), default=0),
        )

    @property
    def window_cells(self) -> int:
        """The cells of a layer with a window in a long sequence."""
        return whole_cells(self.window + GRAPH_ROWS)

    @property
    def state(self) -> int:
        """Bytes of what a sequence cannot be cut after: its states, and its windows once they are full."""
        return self.states + self.windowed * self.window

    @property
    def state_tokens(self) -> float:
        """Tokens that take as much memory in all layers as a state; infinite if they take none."""
        token = self.per_token + self.windowed
        return self.state / token if token else inf

    def rollback(self, context_tokens: int) -> int:
        """Return the rows by which states go back: further states for these take a twentieth of the cells at most.

        So a plan that does not count them is right within 5%.
        """
        return min(MOST_ROLLBACK, self.per_token * context_tokens // (20 * self.states)) if self.states else 0

    def of(self, tokens: int, sequences: int = 1) -> int:
        """Return the bytes of sequences with so many tokens together."""
        window = self.windowed * min(tokens // sequences, self.window_cells)
        return self.per_token * tokens + sequences * (self.states + window)

    def mask(self, context_tokens: int) -> int:
        """Return the bytes of a batch's attention masks, which all sequences share."""
        return self.masks * _MASK_BYTES_PER_TOKEN * context_tokens if self.per_token + self.windowed else 0

    def number_within(self, size: int, context_tokens: int) -> int:
        """Return the number of sequences of this context within a size in bytes."""
        return max(0, size - self.mask(context_tokens)) // max(1, self.of(context_tokens))

    def tokens_within(self, size: int, sequences: int = 1) -> int:
        """Return the tokens of each of several sequences within a size in bytes, in whole cells."""
        short, long = sequences * (self.per_token + self.windowed), sequences * self.per_token
        left = size - sequences * self.states
        # Windows take the less of what they take in a short sequence, and of what they take in a long one.
        ways = (left, short), (left - sequences * self.windowed * self.window_cells, long)
        tokens = max(max(0, room) // max(1, each + self.mask(1)) for room, each in ways)
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
