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
    # Layers, widths and vocabulary of Qwen3's, with as many heads of 128 as the width has room for.
    "0.6b": Shape(28, 1024, 8, 4, 3072, 151_936, 32_768),
    "4b": Shape(36, 2560, 20, 4, 9728, 151_936, 32_768),
    "tiny": Shape(2, 64, 4, 2, 192, 512, 2048),
    "long": Shape(2, 64, 2, 1, 192, 512, 131_072),  # heads of 32, as a quantized KV cache needs them
}
TINY = PRESETS["tiny"]
