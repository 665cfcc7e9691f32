"""The logits of labels after a prompt, in place of a sampled token."""

import math
from collections.abc import Sequence

import numpy as np

from car_engine.llama.sampler import Logits, log_total


class LabelReadout:
    """Reads the logits of a model's labels, which have at least one token each."""

    def __init__(self, tokens: Sequence[Sequence[int]]) -> None:
        self._tokens = [np.array(each, np.int64) for each in tokens]

    def of(self, logits: Logits, count: int) -> list[float]:
        """Return the logarithm of the weight of all tokens, then the logits of the first `count` labels."""
        return [log_total(logits), *(_joint(logits[tokens]) for tokens in self._tokens[:count])]


def _joint(logits: Logits) -> float:
    """Return the logit of a label: its tokens together are as likely as one token of this logit."""
    if len(logits) == 1:
        return float(logits[0])
    greatest = float(logits.max())
    return greatest + math.log(math.fsum(math.exp(float(logit) - greatest) for logit in logits))
