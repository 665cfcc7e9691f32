"""A batch of embeddings, for the rows that a projector makes of an image."""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_engine.llama.library import pointer

Rows = NDArray[np.float32]


class EmbeddingBatch:
    """A llama_batch of one sequence over numpy arrays of our own; it must never reach llama_batch_free."""

    def __init__(self, rows: int, width: int) -> None:
        self._embeddings = np.zeros((rows, width), np.float32)
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._number = np.zeros(1, np.int32)
        # All rows belong to one sequence: their lists of ids are the same cell.
        self._pointers = np.full(rows, self._number.ctypes.data, np.uintp)
        self._outputs = np.zeros(rows, np.int8)
        self._batch = binding.llama_batch(
            n_tokens=0,
            token=None,
            embd=pointer(self._embeddings, ctypes.c_float),
            pos=pointer(self._positions, binding.llama_pos),
            n_seq_id=pointer(self._counts, ctypes.c_int32),
            seq_id=pointer(self._pointers, ctypes.POINTER(binding.llama_seq_id)),
            logits=pointer(self._outputs, ctypes.c_int8),
        )

    def fill(self, rows: Rows, start: int, number: int, *, output_last: bool) -> Any:
        """Copy rows of shape (count, width) for a sequence from position `start` on and return the batch.

        Raises ValueError for another width, for 0 rows and for more rows than the batch has.
        """
        count = len(rows)
        room, width = self._embeddings.shape
        if rows.shape[1:] != (width,) or not 1 <= count <= room:
            raise ValueError(f"a batch has 1 to {room} rows of {width} numbers, not {rows.shape}")
        self._embeddings[:count] = rows
        self._positions[:count] = np.arange(start, start + count)
        self._number[0] = number
        self._outputs[:count] = 0
        self._outputs[count - 1] = output_last
        self._batch.n_tokens = count
        return self._batch
