"""The dimensions of a generated text model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The dimensions of a transformer."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    context: int

    @property
    def kv_width(self) -> int:
        """Width of all keys, and of all values, of one token."""
        return self.width // self.heads * self.kv_heads


PRESETS = {
    "135m": Shape(30, 576, 9, 3, 1536, 49152, 8192),  # SmolLM-135M
    "tiny": Shape(2, 64, 4, 2, 192, 512, 2048),
    "long": Shape(2, 64, 2, 1, 192, 512, 131_072),  # heads of 32, as a quantized KV cache needs them
}
TINY = PRESETS["tiny"]
