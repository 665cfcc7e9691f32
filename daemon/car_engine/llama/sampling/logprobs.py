"""Log-probabilities of tokens by the model alone, before any sampler."""

import math

import numpy as np

from car_engine.llama.sampling.shortlist import Logits, likeliest
from car_engine.llama.tokens import Vocabulary
from car_protocol.answer import Logprob, TokenChoice

# Stands for the logarithm of 0, which JSON cannot express.
_IMPOSSIBLE = -1000.0


class Logprobs:
    """Computes the log-probabilities of one vocabulary's tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def of(self, logits: Logits, token: int, count: int) -> Logprob:
        """Return a token's natural logarithm of probability, before any sampler, and the `count` likeliest tokens."""
        greatest = logits.max()
        total = float(greatest) + math.log(np.exp(logits - greatest).sum(dtype=np.float64))
        count = min(count, len(logits))
        return Logprob(
            token,
            self._vocabulary.text_of(token),
            _score(logits, token, total),
            [
                TokenChoice(each, self._vocabulary.text_of(each), _score(logits, each, total))
                for each in _ranked(logits, count)
            ],
        )


def _score(logits: Logits, token: int, total: float) -> float:
    return max(float(logits[token]) - total, _IMPOSSIBLE)


def _ranked(logits: Logits, count: int) -> list[int]:
    """Return the `count` likeliest tokens, the likeliest first, equal ones by their ids."""
    if not count:
        return []
    found = likeliest(logits, count)
    if found is None:
        found = np.argpartition(logits, -count)[-count:]
    ranked: list[int] = found[np.lexsort((found, -logits[found]))][:count].tolist()
    return ranked
