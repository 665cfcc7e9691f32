"""A BERT model: it gives vectors, or the score of a pair of texts, and writes nothing."""

from collections.abc import Iterator
from pathlib import Path

import gguf

from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.vocabulary import add_word_pieces
from tools.random_models.weights import RandomWeights, norm

LAYERS = 2
WIDTH = 64
HEADS = 4
FEED_FORWARD = 128
CONTEXT = 512


def generate_embedding(path: Path | str, pooling: str = "mean", *, context: int = CONTEXT) -> None:
    """Write a model that pools by "mean" or "cls"; by "rank" it has a head that scores. It has `context` positions."""
    file = ModelFile(path, "bert", f"bert {pooling}")
    _add_shape(file.metadata, context)
    file.metadata.add_pooling_type(gguf.PoolingType[pooling.upper()])
    tokens = add_word_pieces(file.metadata)
    file.write(_tensors(tokens, context, pooling == "rank", RandomWeights()))


def _add_shape(metadata: gguf.GGUFWriter, context: int) -> None:
    metadata.add_context_length(context)
    metadata.add_embedding_length(WIDTH)
    metadata.add_block_count(LAYERS)
    metadata.add_feed_forward_length(FEED_FORWARD)
    metadata.add_head_count(HEADS)
    metadata.add_layer_norm_eps(1e-5)
    metadata.add_causal_attention(False)


def _tensors(tokens: int, context: int, scores: bool, weights: RandomWeights) -> Iterator[Tensor]:
    yield "token_embd.weight", weights.matrix(tokens, WIDTH)
    yield "token_types.weight", weights.matrix(1, WIDTH)
    yield "position_embd.weight", weights.matrix(context, WIDTH)
    yield from norm("token_embd_norm", WIDTH)
    for layer in range(LAYERS):
        yield from _block(f"blk.{layer}.", weights)
    if scores:
        yield from weights.linear("cls", WIDTH, WIDTH)
        yield from weights.linear("cls.output", 1, WIDTH)


def _block(block: str, weights: RandomWeights) -> Iterator[Tensor]:
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        yield from weights.linear(block + name, WIDTH, WIDTH)
    yield from norm(block + "attn_output_norm", WIDTH)
    yield from weights.linear(block + "ffn_up", FEED_FORWARD, WIDTH)
    yield from weights.linear(block + "ffn_down", WIDTH, FEED_FORWARD)
    yield from norm(block + "layer_output_norm", WIDTH)
