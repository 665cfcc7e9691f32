"""A Gemma 3 model: every other layer sees only the last tokens."""

from collections.abc import Iterator
from pathlib import Path

from tools.random_models import llama
from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import TINY
from tools.random_models.vocabulary import ByteVocabulary
from tools.random_models.weights import RandomWeights, constant

WINDOW = 16
# The embedding enters at eight times its size; layers that add less would hardly change which token comes next.
LAYER_GAIN = 8.0


def generate_sliding(path: Path | str) -> None:
    """Write the model."""
    vocabulary = ByteVocabulary(TINY.vocabulary)
    file = ModelFile(path, "gemma3", "gemma3")
    llama.add_shape(file.metadata, TINY)
    file.metadata.add_sliding_window(WINDOW)
    file.metadata.add_sliding_window_pattern(2)
    vocabulary.add_to(file.metadata)
    file.write(_tensors(vocabulary, RandomWeights()))


def _tensors(vocabulary: ByteVocabulary, weights: RandomWeights) -> Iterator[Tensor]:
    yield from llama.tensors(TINY, vocabulary, weights)
    head = TINY.width // TINY.heads
    for layer in range(TINY.layers):
        block = f"blk.{layer}."
        yield block + "attn_q_norm.weight", constant(head, 1)
        yield block + "attn_k_norm.weight", constant(head, 1)
        yield block + "post_attention_norm.weight", constant(TINY.width, LAYER_GAIN)
        yield block + "post_ffw_norm.weight", constant(TINY.width, LAYER_GAIN)
