"""Candidates of a sampler chain, where a grammar allows only a part of the vocabulary."""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding

from car_engine.llama.library import quick
from car_engine.llama.sampling.shortlist import Logits, Tokens

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
