"""A Mamba model: its memory is one state, so no tail of it can be dropped."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from tools.random_models.model_file import ModelFile, Tensor, Weight
from tools.random_models.shape import TINY
from tools.random_models.vocabulary import ByteVocabulary
from tools.random_models.weights import RandomWeights, constant

WIDTH = TINY.width
INNER = 2 * WIDTH  # the only factor that llama.cpp takes
STATE = 16
KERNEL = 4
STEP_RANK = 4
LAYER_GAIN = 8.0  # less would hardly change which token comes next


def generate_recurrent(path: Path | str) -> None:
    """Write the model."""
    vocabulary = ByteVocabulary(TINY.vocabulary)
    file = ModelFile(path, "mamba", "mamba")
    _add_shape(file.metadata)
    vocabulary.add_to(file.metadata)
    file.write(_tensors(vocabulary, RandomWeights()))


def _add_shape(metadata: gguf.GGUFWriter) -> None:
    metadata.add_context_length(TINY.context)
    metadata.add_embedding_length(WIDTH)
    metadata.add_block_count(TINY.layers)
    metadata.add_feed_forward_length(0)
    metadata.add_head_count(0)
    metadata.add_ssm_conv_kernel(KERNEL)
    metadata.add_ssm_inner_size(INNER)
    metadata.add_ssm_state_size(STATE)
    metadata.add_ssm_time_step_rank(STEP_RANK)
    metadata.add_layer_norm_rms_eps(1e-5)
    metadata.add_vocab_size(TINY.vocabulary)


def _tensors(vocabulary: ByteVocabulary, weights: RandomWeights) -> Iterator[Tensor]:
    yield "token_embd.weight", weights.embedding(vocabulary, WIDTH)
    yield "output_norm.weight", constant(WIDTH, 1)
    for layer in range(TINY.layers):
        yield from _block(f"blk.{layer}.", weights)


def _block(block: str, weights: RandomWeights) -> Iterator[Tensor]:
    yield block + "attn_norm.weight", constant(WIDTH, 1)
    yield block + "ssm_in.weight", weights.matrix(2 * INNER, WIDTH)
    yield block + "ssm_conv1d.weight", weights.matrix(INNER, KERNEL)
    yield block + "ssm_conv1d.bias", constant(INNER, 0)
    yield block + "ssm_x.weight", weights.matrix(STEP_RANK + 2 * STATE, INNER)
    yield block + "ssm_dt.weight", weights.matrix(INNER, STEP_RANK)
    yield block + "ssm_dt.bias", constant(INNER, 0)
    yield block + "ssm_a", _decay()
    yield block + "ssm_d", constant(INNER, 1)
    yield block + "ssm_out.weight", weights.matrix(WIDTH, INNER, LAYER_GAIN)


def _decay() -> Weight:
    """Mamba's own start: the state's entries fade faster the later they are; anything above 0 would grow."""
    return np.tile(-np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1))
