"""The sampler of one request: its chain, its grammar, the tokens that it chooses among, and their log-probabilities."""

import ctypes
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_engine.grammar.constraint import Constraint
from car_engine.llama.library import quick
from car_engine.llama.tokens import Vocabulary
from car_protocol.answer import Logprob, TokenChoice

Logits = NDArray[np.float32]
Tokens = NDArray[np.intp]
_COLUMNS = 512
_EVERY = 4  # of so many rows one is looked at for a threshold: it is passed by more tokens, and found in less time
MOST = _COLUMNS // 2  # tokens to find
_MOST_FOUND = 16 * MOST


def likeliest(logits: Logits, count: int, others: Sequence[int] = ()) -> Tokens | None:
    """Return at least the `count` likeliest tokens and not many more, and `others`, by their ids.

    None if too many are found (as equal logits may be), the vocabulary is small, or there are NaNs: all tokens have to
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

    It shapes the `biased` tokens, and the last `remembered` tokens of the text.
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
        """Return the tokens that decide, by their ids; None if all tokens have to be looked at."""
        shaped = list(self._biased.union(self._recent))
        # The likeliest may all be shaped, and then as many others count.
        return likeliest(logits, self._kept + len(shaped), shaped)


# Stands for the logarithm of 0, which JSON cannot express.
_IMPOSSIBLE = -1000.0


class Logprobs:
    """Computes the log-probabilities of one vocabulary's tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def of(self, logits: Logits, token: int, count: int) -> Logprob:
        """Return a token's natural logarithm of probability, before any sampler, and the `count` likeliest tokens."""
        total = log_total(logits)
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


def log_total(logits: Logits) -> float:
    """Return the logarithm of the weight of all tokens, whose weights are the exponentials of their logits."""
    greatest = logits.max()
    return float(greatest) + math.log(np.exp(logits - greatest).sum(dtype=np.float64))


def _score(logits: Logits, token: int, total: float) -> float:
    return max(float(logits[token]) - total, _IMPOSSIBLE)


def _ranked(logits: Logits, count: int) -> list[int]:
    """Return the `count` likeliest tokens, the likeliest first, equal tokens by their ids."""
    if not count:
        return []
    found = likeliest(logits, count)
    if found is None:
        found = np.argpartition(logits, -count)[-count:]
    ranked: list[int] = found[np.lexsort((found, -logits[found]))][:count].tolist()
    return ranked


_apply = quick("llama_sampler_apply")
_LAYOUT = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """An array of llama_token_data for `size` tokens, refilled for every choice."""

    def __init__(self, size: int) -> None:
        self._all = np.arange(size)
        data = np.zeros(size, _LAYOUT)
        self._ids, self._logits, self._probabilities = data["id"], data["logit"], data["p"]
        self._first = data.ctypes.data_as(binding.llama_token_data_p)
        self._array = binding.llama_token_data_array(self._first, size, -1, False)
        self._pointer = ctypes.byref(self._array)

    def choose(self, chain: Any, logits: Logits, allowed: Tokens | None = None) -> int:
        """Return the chain's choice among the allowed tokens (default: all), without accepting it."""
        array, ids = self._array, self._all if allowed is None else allowed
        count = len(ids)
        self._ids[:count] = ids
        self._logits[:count] = logits if allowed is None else logits[allowed]
        self._probabilities[:count] = 0
        # Samplers may let it begin later.
        array.data, array.size, array.selected, array.sorted = self._first, count, -1, False
        _apply(chain, self._pointer)
        if not 0 <= array.selected < array.size:
            raise RuntimeError("a sampler chain chose no token")
        return int(array.data[array.selected].id)


_accept = quick("llama_sampler_accept")


class Sampler:
    """Owns a chain; under a constraint it chooses freely first, and among the allowed tokens if that is refused.

    `never` are the tokens that a greedy chain excludes, None if the chain is not greedy; `shortlist` is None if all
    tokens decide.
    """

    def __init__(
        self,
        chain: Any,
        candidates: Candidates,
        constraint: Constraint | None,
        logprobs: int | None,
        never: frozenset[int] | None,
        shortlist: Shortlist | None,
    ) -> None:
        self.chain = chain
        self.logprobs = logprobs
        self.never = never
        self.shortlist = shortlist
        self._candidates = candidates
        self._constraint = constraint
        self.bound = constraint is not None  # whether a grammar binds the answer, perhaps after a thought
        self.unconstrained = False  # inside a thought, which no grammar binds
        self.due: list[int] = []  # tokens that come next, whatever the logits say
        self.ahead: int | None = None  # the most tokens of a step; None without a bound

    @property
    def complete(self) -> bool:
        """True if the grammar allows no further token."""
        return self._constraint is not None and not self.unconstrained and self._constraint.complete

    def short_way(self, logits: Logits) -> int | None:
        """Return and accept the next token, without constraint; None if all tokens have to be looked at."""
        token = self._short_choice(logits)
        if token is not None and self.never is None:
            self.accept(token)
        return token

    def accept(self, token: int) -> None:
        """Count a token of the text, for what follows."""
        _accept(self.chain, token)
        self.accepted(token)

    def accepted(self, token: int) -> None:
        """Count a token that llama.cpp counted itself."""
        if self.shortlist is not None:
            self.shortlist.remember(token)

    def choose(self, logits: Logits) -> int:
        """Return and accept the next token that the constraint allows. Raises ConstraintError."""
        assert self._constraint is not None
        if self.due:  # the end of a thought
            self.accept(token := self.due.pop(0))
            return token
        token = self._free_choice(logits)
        if self.unconstrained:
            # A thought may be any text but not the end: the text that the grammar requires is still to come.
            others = self._constraint.unfinished(token)
            token = token if others is None else self._candidates.choose(self.chain, logits, others)
        elif not self._constraint.advance(token):
            token = self._candidates.choose(self.chain, logits, self._constraint.allowed())
            self._constraint.advance(token)
        self.accept(token)
        return token

    def close(self) -> None:
        """Free the chain and its samplers."""
        binding.llama_sampler_free(self.chain)
        self.chain = None

    def _free_choice(self, logits: Logits) -> int:
        token = self._short_choice(logits)
        return self._candidates.choose(self.chain, logits) if token is None else token

    def _short_choice(self, logits: Logits) -> int | None:
        if self.never is not None:
            likeliest = int(logits.argmax())
            if likeliest not in self.never:
                return likeliest
        few = None if self.shortlist is None else self.shortlist.of(logits)
        return None if few is None else self._candidates.choose(self.chain, logits, few)


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
