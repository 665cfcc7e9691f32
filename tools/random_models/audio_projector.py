"""An audio projector of Ultravox's kind: 30 s of sound become rows of a text model's embedding."""

from collections.abc import Iterator
from pathlib import Path

import gguf

from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import PRESETS
from tools.random_models.weights import RandomWeights, norm

LAYERS = 1
WIDTH = 32
HEADS = 2
FEED_FORWARD = 64
MEL_BINS = 80
# Of 30 s, after the second convolution's step of two.
POSITIONS = 1500
STACK = 50
# Every sound is padded to whole pieces of 30 s.
AUDIO_TOKENS = POSITIONS // STACK


def generate_audio_projector(path: Path | str, preset: str = "tiny") -> None:
    """Write a projector for the models of a preset; every 30 s of sound become AUDIO_TOKENS rows."""
    width = PRESETS[preset].width
    file = ModelFile(path, "clip", f"audio projector for {preset}")
    _add_shape(file.metadata, width)
    file.write(_tensors(width, RandomWeights()))


def _add_shape(metadata: gguf.GGUFWriter, width: int) -> None:
    metadata.add_type(gguf.GGUFType.MMPROJ)
    metadata.add_clip_has_audio_encoder(True)
    metadata.add_clip_projector_type("ultravox")
    metadata.add_audio_projection_dim(width)
    metadata.add_audio_embedding_length(WIDTH)
    metadata.add_audio_feed_forward_length(FEED_FORWARD)
    metadata.add_audio_block_count(LAYERS)
    metadata.add_audio_head_count(HEADS)
    metadata.add_audio_attention_layernorm_eps(1e-5)
    metadata.add_audio_num_mel_bins(MEL_BINS)
    metadata.add_audio_stack_factor(STACK)


def _tensors(width: int, weights: RandomWeights) -> Iterator[Tensor]:
    for number, inputs in ((1, MEL_BINS), (2, WIDTH)):
        yield f"a.conv1d.{number}.weight", weights.array((WIDTH, inputs, 3), (3 * inputs) ** -0.5)
        yield f"a.conv1d.{number}.bias", weights.matrix(WIDTH, 1)
    yield "a.position_embd.weight", weights.matrix(POSITIONS, WIDTH)
    for layer in range(LAYERS):
        yield from _block(f"a.blk.{layer}.", weights)
    yield from norm("a.post_ln", WIDTH)
    yield from _scale("mm.a.norm_pre", WIDTH * STACK)
    yield "mm.a.mlp.1.weight", weights.matrix(2 * FEED_FORWARD, WIDTH * STACK)
    yield from _scale("mm.a.norm_mid", FEED_FORWARD)
    yield "mm.a.mlp.2.weight", weights.matrix(width, FEED_FORWARD)


def _scale(name: str, width: int) -> Iterator[Tensor]:
    yield from (tensor for tensor in norm(name, width) if tensor[0].endswith(".weight"))


def _block(block: str, weights: RandomWeights) -> Iterator[Tensor]:
    yield from norm(block + "ln1", WIDTH)
    for name in ("attn_q", "attn_v", "attn_out"):
        yield from weights.linear(block + name, WIDTH, WIDTH)
    # Whisper's keys have no bias, and llama.cpp ends the process where they have.
    yield block + "attn_k.weight", weights.matrix(WIDTH, WIDTH)
    yield from norm(block + "ln2", WIDTH)
    yield from weights.linear(block + "ffn_up", FEED_FORWARD, WIDTH)
    yield from weights.linear(block + "ffn_down", WIDTH, FEED_FORWARD)
