"""A vision projector of the LLaVA kind: it turns an image into rows of a text model's embedding."""

from collections.abc import Iterator
from pathlib import Path

import gguf

from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import PRESETS
from tools.random_models.weights import RandomWeights, norm

LAYERS = 2  # llama.cpp leaves the last one out
WIDTH = 32
HEADS = 2
FEED_FORWARD = 64
PATCH = 14
IMAGE = 56
IMAGE_TOKENS = (IMAGE // PATCH) ** 2


def generate_projector(path: Path | str, preset: str = "tiny") -> None:
    """Write a projector for the models of a preset; every image becomes IMAGE_TOKENS rows."""
    width = PRESETS[preset].width
    file = ModelFile(path, "clip", f"projector for {preset}")
    _add_shape(file.metadata, width)
    file.write(_tensors(width, RandomWeights()))


def _add_shape(metadata: gguf.GGUFWriter, width: int) -> None:
    metadata.add_type(gguf.GGUFType.MMPROJ)
    metadata.add_clip_has_vision_encoder(True)
    metadata.add_clip_projector_type("mlp")
    metadata.add_vision_projection_dim(width)
    metadata.add_vision_embedding_length(WIDTH)
    metadata.add_vision_feed_forward_length(FEED_FORWARD)
    metadata.add_vision_block_count(LAYERS)
    metadata.add_vision_head_count(HEADS)
    metadata.add_vision_image_size(IMAGE)
    metadata.add_vision_patch_size(PATCH)
    metadata.add_vision_attention_layernorm_eps(1e-5)
    metadata.add_vision_image_mean([0.5] * 3)
    metadata.add_vision_image_std([0.5] * 3)
    metadata.add_vision_use_gelu(True)


def _tensors(width: int, weights: RandomWeights) -> Iterator[Tensor]:
    pixels = 3 * PATCH * PATCH
    yield "v.patch_embd.weight", weights.array((WIDTH, 3, PATCH, PATCH), pixels**-0.5)
    yield "v.position_embd.weight", weights.matrix(IMAGE_TOKENS, WIDTH)
    for layer in range(LAYERS):
        yield from _block(f"v.blk.{layer}.", weights)
    yield from weights.linear("mm.0", width, WIDTH)
    yield from weights.linear("mm.2", width, width)


def _block(block: str, weights: RandomWeights) -> Iterator[Tensor]:
    yield from norm(block + "ln1", WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        yield from weights.linear(block + name, WIDTH, WIDTH)
    yield from norm(block + "ln2", WIDTH)
    yield from weights.linear(block + "ffn_up", FEED_FORWARD, WIDTH)
    yield from weights.linear(block + "ffn_down", WIDTH, FEED_FORWARD)
