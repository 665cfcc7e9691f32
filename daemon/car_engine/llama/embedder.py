"""A second context on a model's weights that turns texts into vectors, or scores queries with documents."""

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_base.capacity.curve import BATCH_SIZES
from car_engine.llama.context import BatchArrays
from car_engine.llama.library import node_name, quick
from car_engine.llama.model import NO_NUMBERS, LlamaModel, ModelError
from car_engine.llama.tokens import Vocabulary

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
        """Raise ModelError if llama.cpp has no such context; it aborts unless `texts` divides `batch_tokens`."""
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
        """Return whether a node's end is reported, if `ask`; then whether the graph goes on after it."""
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


# Vectors of two ways to pool them that differ by this part of the largest value are the same, but for rounding.
_ROUNDING = 1e-4
PACKED_TEXTS = 32


class Embedder:
    """Embeds or scores token lists; every precondition that would abort the process is checked here.

    A vector has `dimensions` floats; `pooling` is "mean", "cls", "last" or "rank"; with `ranks` it scores and does not
    embed; an input has at most `max_tokens`.
    """

    def __init__(self, model: LlamaModel, vocabulary: Vocabulary, *, threads: int, context_tokens: int) -> None:
        """Raise ModelError if llama.cpp has no such context for the model, or its weights make every number NaN."""
        named = model.metadata.own("pooling_type")
        known = {binding.LLAMA_POOLING_TYPE_UNSPECIFIED, binding.LLAMA_POOLING_TYPE_NONE, *POOLINGS}
        if named is not None and named not in map(str, known):
            raise ModelError(f"the model's pooling, {named}, is not one that this llama.cpp supports")
        self.max_tokens = min(context_tokens, model.trained_context)
        # A recurrent memory reserves a whole state for each of its sequences.
        self._texts = 1 if model.keeps_states else PACKED_TEXTS
        self._packed_tokens = BATCH_SIZES[model.computes_on].texts
        self._batch_tokens = -(-max(self.max_tokens, self._packed_tokens) // PACKED_TEXTS) * PACKED_TEXTS
        self._vocabulary = vocabulary
        self.dimensions = int(binding.llama_model_n_embd_out(model.handle))
        self._context = self._open(model, threads)
        self.pooling = self._context.pooling
        self.ranks = self.pooling == "rank"
        if np.isnan(self._run([[0]], 1)).all():
            self.close()
            raise ModelError(NO_NUMBERS)
        if self.ranks and not self._has_head(model, threads):
            self.close()
            raise ModelError("the model's metadata say that it ranks, and it lacks a classification head")

    def set_threads(self, threads: int) -> None:
        """Set the number of threads, from the next batch on."""
        self._context.set_threads(threads)

    def batches(self, inputs: list[list[int]]) -> list[list[int]]:
        """Return the indices of the inputs of each batch; raises ValueError for an input that is too long."""
        for tokens in inputs:
            self._check_length(len(tokens))
        return pack([len(tokens) for tokens in inputs], self._texts, self._packed_tokens)

    def embed(self, inputs: list[list[int]], *, normalize: bool) -> list[list[float]]:
        """Return the vectors of one batch, of length 1 with `normalize`; raises ValueError for an invalid batch."""
        if self.ranks:
            raise ValueError("the model ranks and does not give vectors")
        vectors = self._run(inputs, self.dimensions).astype(np.float64)
        if normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(lengths > 0, lengths, 1)
        rows: list[list[float]] = vectors.tolist()
        return rows

    def score(self, pairs: list[list[int]]) -> list[float]:
        """Return the head's scores of one batch of pairs; raises ValueError for an invalid batch."""
        if not self.ranks:
            raise ValueError("the model does not rank")
        scores: list[float] = self._run(pairs, 1)[:, 0].tolist()
        return scores

    def in_batches(self, inputs: list[list[int]], normalize: bool) -> Iterator[tuple[list[int], list[list[float]]]]:
        """Compute batches as they are taken: the indices of each, and its vectors, or its scores as vectors."""
        return (
            (batch, self._computed([inputs[index] for index in batch], normalize)) for batch in self.batches(inputs)
        )

    def _computed(self, inputs: list[list[int]], normalize: bool) -> list[list[float]]:
        return [[score] for score in self.score(inputs)] if self.ranks else self.embed(inputs, normalize=normalize)

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def _open(self, model: LlamaModel, threads: int) -> TextContext:
        """Open the context of the model's pooling, or of the mean; a faster context if that has the same vectors."""
        size = {"texts": self._texts, "batch_tokens": self._batch_tokens, "threads": threads}
        context = TextContext(model, binding.LLAMA_POOLING_TYPE_UNSPECIFIED, **size)
        own = binding.LLAMA_POOLING_TYPE_UNSPECIFIED
        if not context.pooling:
            context.close()
            own = binding.LLAMA_POOLING_TYPE_MEAN
            context = TextContext(model, own, **size)
        if model.computes_on != "cpu" or context.pooling == "rank" or not context.generates:
            return context
        sample = [[self._vocabulary.size * part // 9 for part in range(1, 9)][: self.max_tokens]]
        expected = context.run(sample, self.dimensions)
        context.close()
        faster = RowsContext(model, context.pooling, **size)
        found = faster.run(sample, self.dimensions)
        if faster.ended and np.abs(found - expected).max() <= _ROUNDING * np.abs(expected).max():
            return faster
        faster.close()
        return TextContext(model, own, **size)

    def _run(self, inputs: list[list[int]], width: int) -> Floats:
        """Decode a batch; return the first `width` floats of each input's pooling."""
        if not 1 <= len(inputs) <= self._texts:
            raise ValueError(f"a batch has 1 to {self._texts} inputs, not {len(inputs)}")
        for tokens in inputs:
            self._check_length(len(tokens))
            if min(tokens) < 0 or max(tokens) >= self._vocabulary.size:
                raise ValueError(f"a token is outside the vocabulary of {self._vocabulary.size}")
        count = sum(map(len, inputs))
        if count > self._batch_tokens:
            raise ValueError(f"a batch has at most {self._batch_tokens} tokens, not {count}")
        return self._context.run(inputs, width)

    def _check_length(self, count: int) -> None:
        if not 1 <= count <= self.max_tokens:
            raise ValueError(f"an input has 1 to {self.max_tokens} tokens, not {count}")

    def _has_head(self, model: LlamaModel, threads: int) -> bool:
        """Return whether a score differs from the first float of a vector: llama.cpp does not report a missing head."""
        mean = binding.LLAMA_POOLING_TYPE_MEAN
        plain = TextContext(model, mean, texts=1, batch_tokens=PACKED_TEXTS, threads=threads)
        text = [[0]]
        # Every pooling of one token is that token's vector.
        vector = plain.run(text, 1)
        plain.close()
        return not np.array_equal(self._run(text, 1), vector)


def pack(lengths: list[int], texts: int, tokens: int) -> list[list[int]]:
    """Return the indices of each batch: at most `texts`, and `tokens` unless a single text has more.

    The longest input that is left starts a batch, and the shortest inputs fill it.
    """
    left = deque(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True))
    packed = []
    while left:
        batch = [left.popleft()]
        room = tokens - lengths[batch[0]]
        while left and len(batch) < texts and lengths[left[-1]] <= room:
            room -= lengths[left[-1]]
            batch.append(left.pop())
        packed.append(batch)
    return packed
