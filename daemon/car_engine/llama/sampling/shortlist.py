"""The few tokens among which a chain chooses, so that llama.cpp need not copy and sort the whole vocabulary."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Tokens = NDArray[np.intp]
_COLUMNS = 512
_EVERY = 4  # of so many rows one is looked at for a threshold: it is passed by more tokens, and found in less time
MOST = _COLUMNS // 2  # tokens to find
_MOST_FOUND = 16 * MOST


def likeliest(logits: Logits, count: int, others: Sequence[int] = ()) -> Tokens | None:
    """Return at least the `count` likeliest tokens and not many more, and `others`, by their ids.

    None where they are too many, as equal ones may be, the vocabulary is small, or there are NaNs: all tokens have to
    be looked at.
    """
    if count > MOST or len(logits) < _COLUMNS:
        return None
    chosen = logits >= _reached(logits, count)
    if others:
        chosen[others] = True
    found: Tokens = chosen.nonzero()[0]
    return found if count <= len(found) <= _MOST_FOUND else None


def _reached(logits: Logits, count: int) -> np.float32:
    """Return a logit that at least `count` tokens reach: the maxima of as many columns of a table do."""
    rows = len(logits) // _COLUMNS
    maxima = logits[: rows * _COLUMNS].reshape(rows, _COLUMNS)[::_EVERY].max(axis=0)
    maxima.partition(_COLUMNS - count)
    reached: np.float32 = maxima[_COLUMNS - count]
    return reached


class Shortlist:
    """The tokens that decide for a chain which shapes the logits of some and then keeps the `kept` likeliest.

    It shapes those of the `biased` tokens, and of the last `remembered` ones of the text.
    """

    def __init__(self, kept: int, biased: Iterable[int], remembered: int) -> None:
        self._kept = kept
        self._biased = frozenset(biased)
        self._recent: deque[int] = deque(maxlen=remembered)

    def __repr__(self) -> str:
        return f"<Shortlist of {self._kept}, {len(self._biased)} biased, {len(self._recent)} recent>"

    def remember(self, token: int) -> None:
        """Count a token of the text."""
        self._recent.append(token)

    def of(self, logits: Logits) -> Tokens | None:
        """Return the tokens that decide, by their ids; None where all of them have to be looked at."""
        shaped = list(self._biased.union(self._recent))
        # The likeliest may all be shaped, and then as many others count.
        return likeliest(logits, self._kept + len(shaped), shaped)
