"""Probabilities over the labels of a question, and the figures that follow from them: pure."""

import math
from collections.abc import Sequence


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Return the probabilities of logits; a temperature above 1 makes them more alike."""
    greatest = max(logits)
    weights = [math.exp((logit - greatest) / temperature) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def averaged(distributions: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of distributions over the same labels."""
    return [math.fsum(column) / len(distributions) for column in zip(*distributions, strict=True)]


def mass(logits: Sequence[float], log_total: float) -> float:
    """Return the share of some tokens in the probability of all, the logarithm of whose weights is `log_total`."""
    return min(1.0, math.fsum(math.exp(logit - log_total) for logit in logits))


def mode(probabilities: Sequence[float]) -> int:
    """Return the first index of the greatest probability."""
    return max(range(len(probabilities)), key=lambda index: probabilities[index])


def mean(probabilities: Sequence[float]) -> float:
    """Return the mean of the indices."""
    return math.fsum(index * probability for index, probability in enumerate(probabilities))


def choice_confidence(probabilities: Sequence[float]) -> float:
    """Return how far the greatest probability is from chance: 0 is chance, 1 is certain."""
    chance = 1 / len(probabilities)
    return max(0.0, (max(probabilities) - chance) / (1 - chance))


def score_confidence(probabilities: Sequence[float]) -> float:
    """Return how near the probability is to its mode, beside levels that are all alike: 0 is as far, 1 is certain."""
    count, best = len(probabilities), mode(probabilities)
    spread = math.fsum(probability * abs(index - best) for index, probability in enumerate(probabilities))
    chance = math.fsum(abs(index - (count - 1) / 2) for index in range(count)) / count
    return max(0.0, 1 - spread / chance)
