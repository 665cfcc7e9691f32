"""A LoRA adapter for a generated llama model."""

from collections.abc import Iterator
from pathlib import Path

import gguf

from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import PRESETS, Shape
from tools.random_models.weights import RandomWeights

STRENGTH = 2.0  # the size of what a layer adds, against what it added before


def generate_adapter(path: Path | str, preset: str = "tiny", seed: int = 1, rank: int = 4) -> None:
    """Write an adapter for the models of a preset; at scale 1 their greedy output is another."""
    file = ModelFile(path, "llama", f"adapter for {preset}")
    file.metadata.add_type(gguf.GGUFType.ADAPTER)
    file.metadata.add_string("adapter.type", "lora")
    # llama.cpp multiplies by alpha / rank.
    file.metadata.add_float32("adapter.lora.alpha", float(rank))
    file.write(_tensors(PRESETS[preset], rank, RandomWeights(seed)))


def _tensors(shape: Shape, rank: int, weights: RandomWeights) -> Iterator[Tensor]:
    for layer in range(shape.layers):
        yield from _pair(f"blk.{layer}.attn_q.weight", shape.width, shape.width, rank, weights)
        yield from _pair(f"blk.{layer}.attn_v.weight", shape.kv_width, shape.width, rank, weights)


def _pair(name: str, rows: int, columns: int, rank: int, weights: RandomWeights) -> Iterator[Tensor]:
    yield name + ".lora_a", weights.matrix(rank, columns)
    yield name + ".lora_b", weights.matrix(rows, rank, STRENGTH)
