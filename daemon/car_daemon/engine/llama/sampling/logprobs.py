"""Log-probabilities of tokens by the model alone, before any sampler."""

import numpy as np

from car_daemon.engine.llama.sampling.sampler import Logits
from car_daemon.engine.llama.tokens import Vocabulary
from car_protocol.answer import Logprob, TokenChoice

# Stands for the logarithm of 0, which JSON cannot express.
_IMPOSSIBLE = -1000.0


class Logprobs:
    """Computes the log-probabilities of one vocabulary's tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def of(self, logits: Logits, token: int, count: int) -> Logprob:
        """Return a token's natural logarithm of probability, before any sampler, and the `count` likeliest tokens."""
        scores = logits.astype(np.float64)
        scores -= scores.max()
        scores -= np.log(np.exp(scores).sum())
        np.maximum(scores, _IMPOSSIBLE, out=scores)
        count = min(count, len(scores))
        likeliest = np.argpartition(scores, -count)[-count:] if count else np.empty(0, np.intp)
        likeliest = likeliest[np.argsort(-scores[likeliest], kind="stable")]
        return Logprob(
            token,
            self._vocabulary.text_of(token),
            float(scores[token]),
            [TokenChoice(int(each), self._vocabulary.text_of(int(each)), float(scores[each])) for each in likeliest],
        )
