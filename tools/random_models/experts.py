"""A mixture of experts: a plain transformer each of whose tokens goes through two of eight feed-forward networks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tools.random_models import llama
from tools.random_models.model_file import ModelFile, Tensor
from tools.random_models.shape import TINY
from tools.random_models.vocabulary import ByteVocabulary
from tools.random_models.weights import RandomWeights

EXPERTS, _USED = 8, 2
SHAPE = replace(TINY, layers=4, feed_forward=256)
_DENSE = ("ffn_gate.", "ffn_up.", "ffn_down.")


def generate_experts(path: Path | str) -> None:
    """Write the model."""
    vocabulary = ByteVocabulary(SHAPE.vocabulary)
    file = ModelFile(path, "llama", "experts", "q8_0")
    llama.add_shape(file.metadata, SHAPE)
    file.metadata.add_expert_count(EXPERTS)
    file.metadata.add_expert_used_count(_USED)
    vocabulary.add_to(file.metadata)
    file.write(_tensors(vocabulary, RandomWeights()))


def _tensors(vocabulary: ByteVocabulary, weights: RandomWeights) -> Iterator[Tensor]:
    plain = llama.tensors(replace(SHAPE, feed_forward=32), vocabulary, weights)
    yield from ((name, weight) for name, weight in plain if not any(part in name for part in _DENSE))
    width, wide = SHAPE.width, SHAPE.feed_forward
    for layer in range(SHAPE.layers):
        block = f"blk.{layer}.ffn_"
        yield block + "gate_inp.weight", weights.matrix(EXPERTS, width)
        yield block + "gate_exps.weight", weights.array((EXPERTS, wide, width), width**-0.5)
        yield block + "up_exps.weight", weights.array((EXPERTS, wide, width), width**-0.5)
        yield block + "down_exps.weight", weights.array((EXPERTS, width, wide), wide**-0.5)
