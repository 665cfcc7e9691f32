"""Candidates of a sampler chain, where a grammar allows only a part of the vocabulary."""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_daemon.engine.llama.library import quick

_apply = quick("llama_sampler_apply")
_LAYOUT = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """An array of llama_token_data for `size` tokens, refilled for every choice."""

    def __init__(self, size: int) -> None:
        self._all = np.arange(size, dtype=np.int32)
        self._data = np.zeros(size, _LAYOUT)
        self._pointer = self._data.ctypes.data_as(binding.llama_token_data_p)

    def choose(self, chain: Any, logits: NDArray[np.float32], allowed: NDArray[np.intp] | None = None) -> int:
        """Return the chain's choice among the allowed tokens (default: all), without accepting it."""
        ids = self._all if allowed is None else allowed
        count = len(ids)
        self._data["id"][:count] = ids
        self._data["logit"][:count] = logits if allowed is None else logits[allowed]
        self._data["p"][:count] = 0
        array = binding.llama_token_data_array(self._pointer, count, -1, False)
        _apply(chain, ctypes.byref(array))
        if not 0 <= array.selected < array.size:
            raise RuntimeError("a sampler chain chose no token")
        return int(array.data[array.selected].id)
