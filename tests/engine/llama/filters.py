"""Each sampler by its documentation, written anew over whole vectors; a forbidden token's logit is -inf."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding  # noqa: TID251 - what is left of the vocabulary is read off the chain
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def softmax(logits: Vector) -> Vector:
    """Return probabilities."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum(), np.float64)


def keep(logits: Vector, kept: Any) -> Vector:
    """Return the logits with all but some tokens (a mask or numbers) forbidden."""
    left = np.full_like(logits, -np.inf)
    left[kept] = logits[kept]
    return left


def top_n_sigma(logits: Vector, n: float) -> Vector:
    """Keep what is within so many standard deviations of the best."""
    return keep(logits, logits >= logits.max() - n * logits[np.isfinite(logits)].std())


def top_k(logits: Vector, k: int) -> Vector:
    """Keep so many of the likeliest."""
    return keep(logits, np.argsort(-logits, kind="stable")[:k])


def typical(logits: Vector, mass: float) -> Vector:
    """Keep those whose surprise is nearest to the mean surprise, until they have this mass."""
    probabilities = softmax(logits)
    surprise = np.full_like(probabilities, np.inf)
    possible = probabilities > 0
    surprise[possible] = -np.log(probabilities[possible])
    entropy = (probabilities[possible] * surprise[possible]).sum()
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    return keep(logits, _until(order, probabilities, mass, reached=np.greater))


def top_p(logits: Vector, mass: float) -> Vector:
    """Keep the likeliest, until they have this mass."""
    probabilities = softmax(logits)
    order = np.argsort(-probabilities, kind="stable")
    return keep(logits, _until(order, probabilities, mass, reached=np.greater_equal))


def min_p(logits: Vector, share: float) -> Vector:
    """Keep what is at least as likely as this share of the likeliest."""
    probabilities = softmax(logits)
    return keep(logits, probabilities >= share * probabilities.max())


def xtc(logits: Vector, threshold: float) -> Vector:
    """Forbid all that reach the threshold but the least likely of them."""
    probabilities = softmax(logits)
    top = np.flatnonzero(probabilities >= threshold)
    left = logits.copy()
    if len(top) > 1:
        left[top] = -np.inf
        last = top[probabilities[top].argmin()]
        left[last] = logits[last]
    return left


def penalized(logits: Vector, window: Sequence[int], repeat: float, frequency: float, presence: float) -> Vector:
    """Lower what comes again: divided towards 0 or multiplied away from it, then less by its count, and by being."""
    lowered = logits.copy()
    for token in set(window):
        lowered[token] = lowered[token] / repeat if lowered[token] > 0 else lowered[token] * repeat
        lowered[token] -= window.count(token) * frequency + presence
    return lowered


def left_by(chain: Any, logits: NDArray[np.float32]) -> Vector:
    """Return the logits after a real chain, up to the token that it chooses; -inf for what is forbidden."""
    data = (binding.llama_token_data * len(logits))()
    for token, logit in enumerate(logits):
        data[token].id, data[token].logit = token, float(logit)
    array = binding.llama_token_data_array(data, len(logits), -1, False)
    binding.llama_sampler_apply(chain, ctypes.byref(array))
    left = np.full(len(logits), -np.inf)
    for place in range(array.size):
        left[array.data[place].id] = array.data[place].logit
    return left


def critical(degrees: int) -> float:
    """Return what a chi-square exceeds in one of 10,000 cases, after Wilson and Hilferty."""
    share = 2 / (9 * degrees)
    return degrees * (1 - share + 3.719 * math.sqrt(share)) ** 3


def assert_follows(tokens: Sequence[int], probabilities: Vector) -> None:
    """Fail where the tokens are not drawn with these probabilities; rare ones are counted together."""
    expected = probabilities * len(tokens)
    seen = np.bincount(tokens, minlength=len(probabilities)).astype(np.float64)
    assert not seen[probabilities == 0].any()
    common = expected >= 10
    expected = np.append(expected[common], expected[~common].sum())
    seen = np.append(seen[common], seen[~common].sum())
    used = expected > 0
    statistic = ((seen[used] - expected[used]) ** 2 / expected[used]).sum()
    assert statistic < critical(max(1, int(used.sum()) - 1)), (statistic, used.sum())


def _until(order: NDArray[np.intp], probabilities: Vector, mass: float, reached: Any) -> NDArray[np.intp]:
    """Return as many of an order as it takes to reach a mass; at least one."""
    enough = reached(np.cumsum(probabilities[order]), mass)
    possible = int((probabilities > 0).sum())
    return order[: int(enough.argmax()) + 1 if enough.any() else possible]
