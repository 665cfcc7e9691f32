"""Random weights, the same for the same seed."""

from collections.abc import Iterator

import numpy as np

from tools.random_models.model_file import Tensor, Weight
from tools.random_models.vocabulary import ByteVocabulary

LOGIT_SPREAD = 3.0  # wide enough that a token of logit 0, such as the end token, is hardly ever drawn


class RandomWeights:
    """Draws weights; the order of the calls decides what they return."""

    def __init__(self, seed: int = 1) -> None:
        self._generator = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, spread: float = 1.0) -> Weight:
        """Return a matrix that keeps the size of what it multiplies, times `spread`."""
        return self.array((rows, columns), spread * columns**-0.5)

    def array(self, shape: tuple[int, ...], deviation: float) -> Weight:
        """Return normally distributed numbers."""
        return self._generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    def embedding(self, vocabulary: ByteVocabulary, width: int) -> Weight:
        """Return an embedding that serves as output projection: the logits of unwritten tokens are 0."""
        rows = self.matrix(vocabulary.size, width, LOGIT_SPREAD)
        rows[vocabulary.unwritten()] = 0
        return rows

    def linear(self, name: str, rows: int, columns: int) -> Iterator[Tensor]:
        """Yield a layer's matrix and a bias of 0."""
        yield name + ".weight", self.matrix(rows, columns)
        yield name + ".bias", constant(rows, 0)


def norm(name: str, width: int) -> Iterator[Tensor]:
    """Yield the gain of 1 and the bias of 0 of a normalization."""
    yield name + ".weight", constant(width, 1)
    yield name + ".bias", constant(width, 0)


def constant(size: int, value: float) -> Weight:
    """Return a vector of one value."""
    return np.full(size, value, dtype=np.float32)
