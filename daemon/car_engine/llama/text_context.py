"""A context that turns a batch of texts into one vector each."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_engine.llama.context import BatchArrays
from car_engine.llama.library import node_name, quick
from car_engine.llama.model import LlamaModel, ModelError

Floats = NDArray[np.float32]

_embeddings_of = quick("llama_get_embeddings_seq")
_embeddings = quick("llama_get_embeddings")
_clear = quick("llama_memory_clear")
_KEEP_BYTES = False
# With flash attention a text's vector depends on the other texts of its batch, by up to some percent.
_NO_FLASH_ATTENTION = 0
POOLINGS: Final = {
    binding.LLAMA_POOLING_TYPE_MEAN: "mean",
    binding.LLAMA_POOLING_TYPE_CLS: "cls",
    binding.LLAMA_POOLING_TYPE_LAST: "last",
    binding.LLAMA_POOLING_TYPE_RANK: "rank",
}
# llama.cpp's name of the rows' vectors in a graph without pooling.
_ROWS = b"result_embd_pooled"
# While llama.cpp calls Python for each of a thousand nodes, a thread that works gives way so soon.
_SWITCH_S = 0.0001


class TextContext:
    """llama.cpp's own pooling of each text: "mean", "cls", "last", "rank", or "" for none."""

    def __init__(self, model: LlamaModel, pooling: int, *, texts: int, batch_tokens: int, threads: int) -> None:
        """Raise ModelError where llama.cpp has no such context; it aborts unless `texts` divides `batch_tokens`."""
        params = binding.llama_context_default_params()
        params.n_ctx = batch_tokens
        params.n_seq_max = texts
        # A text has to be pooled in one piece, so that a batch is never split.
        params.n_batch = batch_tokens
        params.n_ubatch = batch_tokens
        params.n_threads = threads
        params.n_threads_batch = threads
        params.embeddings = True
        params.pooling_type = pooling
        params.kv_unified = True
        params.flash_attn_type = _NO_FLASH_ATTENTION
        params.no_perf = True
        self._prepare(params)
        self._handle = binding.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise ModelError("the context could not be created")
        # None for models that attend to a batch as a whole, such as BERT.
        self._memory = binding.llama_get_memory(self._handle)
        self._batch = BatchArrays(batch_tokens)
        self.pooling = POOLINGS.get(binding.llama_pooling_type(self._handle), "")

    @property
    def generates(self) -> bool:
        """Whether the model also generates, so that llama.cpp computes logits for every row."""
        return bool(self._memory)

    def set_threads(self, threads: int) -> None:
        """Set the number of threads, from the next batch on."""
        binding.llama_set_n_threads(self._handle, threads, threads)

    def run(self, inputs: list[list[int]], width: int) -> Floats:
        """Decode a batch; return the first `width` floats of each input's vector."""
        if self._memory:
            _clear(self._memory, _KEEP_BYTES)
        tokens = list(chain.from_iterable(inputs))
        positions = list(chain.from_iterable(range(len(tokens)) for tokens in inputs))
        numbers = [number for number, tokens in enumerate(inputs) for _ in tokens]
        code = self._decode(self._batch.fill(tokens, positions, numbers, [True] * len(tokens)))
        if code != 0:
            raise RuntimeError(f"llama_decode of a batch to embed returned {code}")
        binding.llama_synchronize(self._handle)
        return self._vectors(inputs, width)

    def close(self) -> None:
        """Free the context."""
        binding.llama_synchronize(self._handle)
        binding.llama_free(self._handle)

    def _prepare(self, params: Any) -> None:
        """Change the parameters of the context before it is created."""

    def _decode(self, batch: Any) -> int:
        code: int = binding.llama_decode(self._handle, batch)
        return code

    def _vectors(self, inputs: list[list[int]], width: int) -> Floats:
        pooled = [_embeddings_of(self._handle, number) for number in range(len(inputs))]
        if not all(pooled):
            raise RuntimeError("llama.cpp returned no vector for a sequence of the batch")
        return np.stack([np.ctypeslib.as_array(address, (width,)) for address in pooled])


class RowsContext(TextContext):
    """The same vectors without logits, which llama.cpp computes for every row of a model that also generates.

    The graph ends at the vectors of its rows, and these are pooled here.
    """

    def __init__(self, model: LlamaModel, pooling: str, *, texts: int, batch_tokens: int, threads: int) -> None:
        self._callback = binding.ggml_backend_sched_eval_callback(self._node)
        self.ended = False  # the last graph had a node of that name
        self._dimensions = int(binding.llama_model_n_embd_out(model.handle))
        none = binding.LLAMA_POOLING_TYPE_NONE
        super().__init__(model, none, texts=texts, batch_tokens=batch_tokens, threads=threads)
        self.pooling = pooling

    def _prepare(self, params: Any) -> None:
        params.cb_eval = self._callback

    def _node(self, node: int, ask: bool, _: object) -> bool:
        """Return whether a node's end is reported, where `ask`; then whether the graph goes on after it."""
        if ask:
            return node_name(node) == _ROWS
        self.ended = True
        return False

    def _decode(self, batch: Any) -> int:
        self.ended = False
        with _soon():
            return super()._decode(batch)

    def _vectors(self, inputs: list[list[int]], width: int) -> Floats:
        bounds = list(accumulate(map(len, inputs), initial=0))
        rows = np.ctypeslib.as_array(_embeddings(self._handle), (bounds[-1], self._dimensions))[:, :width]
        return np.stack([self._pooled(rows[start:end]) for start, end in pairwise(bounds)])

    def _pooled(self, rows: Floats) -> Floats:
        mean = self.pooling == "mean"
        row: Floats = rows.mean(axis=0, dtype=np.float64) if mean else rows[0 if self.pooling == "cls" else -1]
        return row.astype(np.float32)


@contextmanager
def _soon() -> Iterator[None]:
    """Let threads that wait for the interpreter have it sooner."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
