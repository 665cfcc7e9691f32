"""A projector of the Idefics 3 kind: it cuts an image into slices and has tokens around each."""

from collections.abc import Iterator
from pathlib import Path

import gguf

from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import TINY
from tools.random_models.weights import RandomWeights, norm

WIDTH = 32
PATCH = 14
SLICE = 56
MERGED = 2
# An image is scaled so that its long side has this many pixels, and cut into slices.
LONGEST = 112
SLICE_TOKENS = (SLICE // PATCH // MERGED) ** 2
NEEDED = {"\n\n": False, "<fake_token_around_image>": True, "<global-img>": True}


def generate_sliced_projector(path: Path) -> None:
    """Write the projector for tiny models that have the tokens of NEEDED."""
    file = ModelFile(path, "clip", "sliced projector")
    _add_shape(file.metadata)
    file.write(_tensors(RandomWeights(1)))


def _add_shape(metadata: gguf.GGUFWriter) -> None:
    metadata.add_type(gguf.GGUFType.MMPROJ)
    metadata.add_clip_has_vision_encoder(True)
    metadata.add_clip_projector_type("idefics3")
    metadata.add_vision_projection_dim(TINY.width)
    metadata.add_vision_embedding_length(WIDTH)
    metadata.add_vision_feed_forward_length(WIDTH)
    metadata.add_vision_block_count(1)
    metadata.add_vision_head_count(2)
    metadata.add_vision_image_size(SLICE)
    metadata.add_vision_patch_size(PATCH)
    metadata.add_vision_projector_scale_factor(MERGED)
    metadata.add_vision_preproc_image_size(LONGEST)
    metadata.add_vision_attention_layernorm_eps(1e-5)
    metadata.add_vision_image_mean([0.5] * 3)
    metadata.add_vision_image_std([0.5] * 3)
    metadata.add_vision_use_gelu(True)


def _tensors(weights: RandomWeights) -> Iterator[Tensor]:
    pixels = 3 * PATCH * PATCH
    yield "v.patch_embd.weight", weights.array((WIDTH, 3, PATCH, PATCH), pixels**-0.5)
    yield "v.position_embd.weight", weights.matrix((SLICE // PATCH) ** 2, WIDTH)
    for name in ("ln1", "ln2"):
        yield from norm(f"v.blk.0.{name}", WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down"):
        yield from weights.linear(f"v.blk.0.{name}", WIDTH, WIDTH)
    yield "mm.model.fc.weight", weights.matrix(TINY.width, WIDTH * MERGED**2)
