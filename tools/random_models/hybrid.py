"""Hybrid models: the first layer keeps a state and the second one cells, as LFM2, Qwen3.5 and Granite 4 H have them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf

from tools.random_models import llama
from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import TINY
from tools.random_models.vocabulary import ByteVocabulary
from tools.random_models.weights import RandomWeights, constant

WIDTH, HEAD = TINY.width, TINY.width // TINY.heads
KERNEL = 4
STATE_HEADS, STATE, GROUPS = 8, 16, 2
INNER = STATE_HEADS * STATE  # twice the width, as Granite's has to be
LAYER_GAIN = 8.0  # less would hardly change which token comes next
AddShape = Callable[[gguf.GGUFWriter], None]
StateLayer = Callable[[str, RandomWeights], Iterator[Tensor]]


def generate_short_convolution(path: Path | str) -> None:
    """Write an LFM2 model, whose state is a convolution over the last tokens."""
    _generate(path, "lfm2", _convolution_shape, _convolution, attention=("q_norm", "k_norm"))


def generate_delta_net(path: Path | str) -> None:
    """Write a Qwen3.5 model, whose state is a gated delta net."""
    _generate(path, "qwen35", _delta_shape, _delta_net, attention=("q_norm", "k_norm"), gated=True)


def generate_mamba2_hybrid(path: Path | str) -> None:
    """Write a Granite 4 H model, whose state is that of Mamba-2."""
    _generate(path, "granitehybrid", _mamba2_shape, _mamba2)


def _generate(
    path: Path | str,
    architecture: str,
    add_shape: AddShape,
    state_layer: StateLayer,
    *,
    attention: tuple[str, ...] = (),
    gated: bool = False,
) -> None:
    vocabulary, weights = ByteVocabulary(TINY.vocabulary), RandomWeights()
    file = ModelFile(path, architecture, architecture)
    llama.add_shape(file.metadata, TINY, None if gated else [0, TINY.kv_heads])
    add_shape(file.metadata)
    vocabulary.add_to(file.metadata)
    file.write(_tensors(architecture, vocabulary, weights, state_layer, attention, gated=gated))


def _tensors(
    architecture: str,
    vocabulary: ByteVocabulary,
    weights: RandomWeights,
    state_layer: StateLayer,
    attention: tuple[str, ...],
    *,
    gated: bool,
) -> Iterator[Tensor]:
    yield "token_embd.weight", weights.embedding(vocabulary, WIDTH)
    yield ("token_embd_norm.weight" if architecture == "lfm2" else "output_norm.weight"), constant(WIDTH, 1)
    for layer in range(2):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", constant(WIDTH, 1)
        yield block + ("post_attention_norm.weight" if gated else "ffn_norm.weight"), constant(WIDTH, 1)
        yield block + "ffn_gate.weight", weights.matrix(TINY.feed_forward, WIDTH)
        yield block + "ffn_up.weight", weights.matrix(TINY.feed_forward, WIDTH)
        yield block + "ffn_down.weight", weights.matrix(WIDTH, TINY.feed_forward)
        if layer == 0:
            yield from state_layer(block, weights)
            continue
        yield block + "attn_q.weight", weights.matrix(2 * WIDTH if gated else WIDTH, WIDTH)
        yield block + "attn_k.weight", weights.matrix(TINY.kv_width, WIDTH)
        yield block + "attn_v.weight", weights.matrix(TINY.kv_width, WIDTH)
        yield block + "attn_output.weight", weights.matrix(WIDTH, WIDTH, LAYER_GAIN)
        for name in attention:
            yield f"{block}attn_{name}.weight", constant(HEAD, 1)


def _convolution_shape(metadata: gguf.GGUFWriter) -> None:
    metadata.add_shortconv_l_cache(KERNEL)


def _convolution(block: str, weights: RandomWeights) -> Iterator[Tensor]:
    yield block + "shortconv.conv.weight", weights.matrix(WIDTH, KERNEL)
    yield block + "shortconv.in_proj.weight", weights.matrix(3 * WIDTH, WIDTH)
    yield block + "shortconv.out_proj.weight", weights.matrix(WIDTH, WIDTH, LAYER_GAIN)


def _state_shape(metadata: gguf.GGUFWriter, groups: int) -> None:
    metadata.add_ssm_conv_kernel(KERNEL)
    metadata.add_ssm_inner_size(INNER)
    metadata.add_ssm_state_size(STATE)
    metadata.add_ssm_time_step_rank(STATE_HEADS)
    metadata.add_ssm_group_count(groups)


def _delta_shape(metadata: gguf.GGUFWriter) -> None:
    _state_shape(metadata, GROUPS)
    metadata.add_full_attention_interval(2)
    metadata.add_key_length(HEAD)
    metadata.add_value_length(HEAD)
    metadata.add_rope_dimension_sections([HEAD // 2, 0, 0, 0])


def _delta_net(block: str, weights: RandomWeights) -> Iterator[Tensor]:
    channels = INNER + 2 * GROUPS * STATE
    yield block + "attn_qkv.weight", weights.matrix(channels, WIDTH)
    yield block + "attn_gate.weight", weights.matrix(INNER, WIDTH)
    yield block + "ssm_conv1d.weight", weights.matrix(channels, KERNEL)
    yield block + "ssm_dt.bias", constant(STATE_HEADS, 0)
    yield block + "ssm_a", constant(STATE_HEADS, -0.1)
    yield block + "ssm_beta.weight", weights.matrix(STATE_HEADS, WIDTH)
    yield block + "ssm_alpha.weight", weights.matrix(STATE_HEADS, WIDTH)
    yield block + "ssm_norm.weight", constant(STATE, 1)
    yield block + "ssm_out.weight", weights.matrix(WIDTH, INNER, LAYER_GAIN)


def _mamba2_shape(metadata: gguf.GGUFWriter) -> None:
    _state_shape(metadata, 1)
    metadata.add_logit_scale(1.0)
    metadata.add_residual_scale(1.0)
    metadata.add_embedding_scale(1.0)
    metadata.add_attention_scale(HEAD**-0.5)


def _mamba2(block: str, weights: RandomWeights) -> Iterator[Tensor]:
    channels = INNER + 2 * STATE
    yield block + "ssm_in.weight", weights.matrix(INNER + channels + STATE_HEADS, WIDTH)
    yield block + "ssm_conv1d.weight", weights.matrix(channels, KERNEL)
    yield block + "ssm_conv1d.bias", constant(channels, 0)
    yield block + "ssm_dt.bias", constant(STATE_HEADS, 0)
    yield block + "ssm_a", constant(STATE_HEADS, -0.1).reshape(STATE_HEADS, 1)
    yield block + "ssm_d", constant(STATE_HEADS, 1).reshape(STATE_HEADS, 1)
    yield block + "ssm_norm.weight", constant(INNER, 1).reshape(1, INNER)
    yield block + "ssm_out.weight", weights.matrix(WIDTH, INNER, LAYER_GAIN)
