"""A GPT-2 model: its positions are rows of a table, and there are no others."""

from collections.abc import Iterator
from pathlib import Path

from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import TINY
from tools.random_models.vocabulary import ByteVocabulary
from tools.random_models.weights import RandomWeights, norm

WIDTH = TINY.width


def generate_positions(path: Path | str, context: int) -> None:
    """Write a model of so many positions."""
    vocabulary = ByteVocabulary(TINY.vocabulary)
    file = ModelFile(path, "gpt2", "gpt2")
    metadata = file.metadata
    metadata.add_context_length(context)
    metadata.add_embedding_length(WIDTH)
    metadata.add_block_count(TINY.layers)
    metadata.add_feed_forward_length(TINY.feed_forward)
    metadata.add_head_count(TINY.heads)
    metadata.add_layer_norm_eps(1e-5)
    vocabulary.add_to(metadata)
    file.write(_tensors(vocabulary, RandomWeights(), context))


def _tensors(vocabulary: ByteVocabulary, weights: RandomWeights, context: int) -> Iterator[Tensor]:
    yield "token_embd.weight", weights.embedding(vocabulary, WIDTH)
    yield from norm("output_norm", WIDTH)
    for layer in range(TINY.layers):
        block, wide = f"blk.{layer}.", TINY.feed_forward
        yield from norm(block + "attn_norm", WIDTH)
        yield from weights.linear(block + "attn_qkv", 3 * WIDTH, WIDTH)
        yield from weights.linear(block + "attn_output", WIDTH, WIDTH)
        yield from norm(block + "ffn_norm", WIDTH)
        yield from weights.linear(block + "ffn_up", wide, WIDTH)
        yield from weights.linear(block + "ffn_down", WIDTH, wide)
    # The last one, so that a file can be made longer by more positions.
    yield "position_embd.weight", weights.matrix(context, WIDTH)
