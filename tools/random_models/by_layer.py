"""A Deci model: layers of a plain transformer that differ in their number of KV heads."""

from pathlib import Path

from tools.random_models import llama
from tools.random_models.model_file import ModelFile
from tools.random_models.shape import TINY
from tools.random_models.vocabulary import ByteVocabulary
from tools.random_models.weights import RandomWeights

KV_HEADS = [1, 4]


def generate_by_layer(path: Path | str) -> None:
    """Write the model."""
    vocabulary = ByteVocabulary(TINY.vocabulary)
    file = ModelFile(path, "deci", "deci")
    llama.add_shape(file.metadata, TINY, KV_HEADS)
    vocabulary.add_to(file.metadata)
    file.write(llama.tensors(TINY, vocabulary, RandomWeights(), KV_HEADS))
