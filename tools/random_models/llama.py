"""The llama architecture: a plain transformer with attention over all tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import gguf

from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import PRESETS, Shape
from tools.random_models.vocabulary import PRE, TEMPLATE, ByteVocabulary
from tools.random_models.weights import RandomWeights, constant


def generate(
    path: Path | str,
    preset: str = "135m",
    type: str = "q8_0",
    seed: int = 1,
    *,
    template: str = TEMPLATE,
    extra_tokens: Mapping[str, bool] | None = None,
    pre: str = PRE,
) -> None:
    """Write the model of a preset, the same file for the same arguments; `extra_tokens`: text to is-control.

    `pre` names the rules by which llama.cpp cuts text before it looks for merges.
    """
    shape = PRESETS[preset]
    vocabulary = ByteVocabulary(shape.vocabulary, template, extra_tokens or {}, pre)
    file = ModelFile(path, "llama", preset, type)
    add_shape(file.metadata, shape)
    vocabulary.add_to(file.metadata)
    file.write(tensors(shape, vocabulary, RandomWeights(seed)))


def add_shape(metadata: gguf.GGUFWriter, shape: Shape, kv_heads: list[int] | None = None) -> None:
    """Add the dimensions, and what else every transformer with rotated positions declares.

    `kv_heads` are the KV heads of each layer, where they differ.
    """
    metadata.add_context_length(shape.context)
    metadata.add_embedding_length(shape.width)
    metadata.add_block_count(shape.layers)
    metadata.add_feed_forward_length(shape.feed_forward)
    metadata.add_head_count(shape.heads)
    metadata.add_head_count_kv(shape.kv_heads if kv_heads is None else kv_heads)
    metadata.add_rope_dimension_count(shape.width // shape.heads)
    metadata.add_rope_freq_base(10_000.0)
    metadata.add_layer_norm_rms_eps(1e-5)
    metadata.add_vocab_size(shape.vocabulary)


def tensors(
    shape: Shape, vocabulary: ByteVocabulary, weights: RandomWeights, kv_heads: list[int] | None = None
) -> Iterator[Tensor]:
    """Every tensor by name; the embedding is also the output projection."""
    yield "token_embd.weight", weights.embedding(vocabulary, shape.width)
    yield "output_norm.weight", constant(shape.width, 1)
    for layer in range(shape.layers):
        of_layer = shape if kv_heads is None else replace(shape, kv_heads=kv_heads[layer])
        yield from _block(f"blk.{layer}.", of_layer, weights)


def _block(block: str, shape: Shape, weights: RandomWeights) -> Iterator[Tensor]:
    width, wide = shape.width, shape.feed_forward
    yield block + "attn_norm.weight", constant(width, 1)
    yield block + "attn_q.weight", weights.matrix(width, width)
    yield block + "attn_k.weight", weights.matrix(shape.kv_width, width)
    yield block + "attn_v.weight", weights.matrix(shape.kv_width, width)
    yield block + "attn_output.weight", weights.matrix(width, width)
    yield block + "ffn_norm.weight", constant(width, 1)
    yield block + "ffn_gate.weight", weights.matrix(wide, width)
    yield block + "ffn_up.weight", weights.matrix(wide, width)
    yield block + "ffn_down.weight", weights.matrix(width, wide)
