"""A second context on a model's weights that turns texts into vectors, or scores queries with documents."""

from collections import deque
from itertools import chain
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_daemon.capacity.batch_sizes import BATCH_SIZES
from car_daemon.engine.llama.context import BatchArrays
from car_daemon.engine.llama.library import quick
from car_daemon.engine.llama.model import NO_NUMBERS, LlamaModel, ModelError
from car_daemon.engine.llama.tokens import Vocabulary

Floats = NDArray[np.float32]

_embeddings_of = quick("llama_get_embeddings_seq")
_clear = quick("llama_memory_clear")
_KEEP_BYTES = False
# With flash attention a text's vector depends on the other texts of its batch, by up to some percent.
_NO_FLASH_ATTENTION = 0
_POOLINGS = {
    binding.LLAMA_POOLING_TYPE_MEAN: "mean",
    binding.LLAMA_POOLING_TYPE_CLS: "cls",
    binding.LLAMA_POOLING_TYPE_LAST: "last",
    binding.LLAMA_POOLING_TYPE_RANK: "rank",
}
PACKED_TEXTS = 32


class Embedder:
    """Embeds or scores token lists; every precondition that would abort the process is checked here.

    A vector has `dimensions` floats; `pooling` is "mean", "cls", "last" or "rank"; with `ranks` it scores and does not
    embed; an input has at most `max_tokens`.
    """

    def __init__(self, model: LlamaModel, vocabulary: Vocabulary, *, threads: int, context_tokens: int) -> None:
        """Raise ModelError where llama.cpp has no such context for the model, or its weights make every number NaN."""
        named = model.metadata.own("pooling_type")
        known = {binding.LLAMA_POOLING_TYPE_UNSPECIFIED, binding.LLAMA_POOLING_TYPE_NONE, *_POOLINGS}
        if named is not None and named not in map(str, known):
            raise ModelError(f"the model's pooling, {named}, is not one that this llama.cpp supports")
        self.max_tokens = min(context_tokens, model.trained_context)
        # A recurrent memory reserves a whole state for each of its sequences.
        self._texts = 1 if model.keeps_states else PACKED_TEXTS
        self._packed_tokens = BATCH_SIZES[model.computes_on].texts
        self._batch_tokens = -(-max(self.max_tokens, self._packed_tokens) // PACKED_TEXTS) * PACKED_TEXTS
        self._vocabulary = vocabulary
        size = self._texts, self._batch_tokens, threads
        self._context = _create(model, binding.LLAMA_POOLING_TYPE_UNSPECIFIED, *size)
        if binding.llama_pooling_type(self._context) == binding.LLAMA_POOLING_TYPE_NONE:
            # The model names no pooling.
            binding.llama_free(self._context)
            self._context = _create(model, binding.LLAMA_POOLING_TYPE_MEAN, *size)
        # None for models that attend to a batch as a whole, such as BERT.
        self._memory = binding.llama_get_memory(self._context)
        self._batch = BatchArrays(self._batch_tokens)
        self.pooling = _POOLINGS[binding.llama_pooling_type(self._context)]
        self.ranks = self.pooling == "rank"
        self.dimensions = int(binding.llama_model_n_embd_out(model.handle))
        if np.isnan(self._run([[0]], 1)).all():
            self.close()
            raise ModelError(NO_NUMBERS)
        if self.ranks and not self._has_head(model, threads):
            self.close()
            raise ModelError("the model's metadata say that it ranks, and it lacks a classification head")

    def set_threads(self, threads: int) -> None:
        """Set the number of threads, from the next batch on."""
        binding.llama_set_n_threads(self._context, threads, threads)

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

    def close(self) -> None:
        """Free the context."""
        binding.llama_synchronize(self._context)
        binding.llama_free(self._context)

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
        return _run(self._context, self._memory, self._batch, inputs, width)

    def _check_length(self, count: int) -> None:
        if not 1 <= count <= self.max_tokens:
            raise ValueError(f"an input has 1 to {self.max_tokens} tokens, not {count}")

    def _has_head(self, model: LlamaModel, threads: int) -> bool:
        """Return whether a score differs from the first float of a vector: llama.cpp does not report a missing head."""
        plain = _create(model, binding.LLAMA_POOLING_TYPE_MEAN, 1, PACKED_TEXTS, threads)
        text = [[0]]
        # Every pooling of one token is that token's vector.
        vector = _run(plain, binding.llama_get_memory(plain), self._batch, text, 1)
        binding.llama_free(plain)
        return not np.array_equal(self._run(text, 1), vector)


def pack(lengths: list[int], texts: int, tokens: int) -> list[list[int]]:
    """Return the indices of each batch: at most `texts`, and `tokens` unless a single text has more.

    The longest input that is left starts a batch, and the shortest ones fill it.
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


def _run(context: Any, memory: Any, batch: BatchArrays, inputs: list[list[int]], width: int) -> Floats:
    if memory:
        _clear(memory, _KEEP_BYTES)
    tokens = list(chain.from_iterable(inputs))
    positions = list(chain.from_iterable(range(len(tokens)) for tokens in inputs))
    numbers = [number for number, tokens in enumerate(inputs) for _ in tokens]
    code = binding.llama_decode(context, batch.fill(tokens, positions, numbers, [True] * len(tokens)))
    if code != 0:
        raise RuntimeError(f"llama_decode of a batch to embed returned {code}")
    binding.llama_synchronize(context)
    pooled = [_embeddings_of(context, number) for number in range(len(inputs))]
    if not all(pooled):
        raise RuntimeError("llama.cpp returned no vector for a sequence of the batch")
    return np.stack([np.ctypeslib.as_array(address, (width,)) for address in pooled])


def _create(model: LlamaModel, pooling: int, texts: int, batch_tokens: int, threads: int) -> Any:
    """Create a context; llama.cpp aborts unless `batch_tokens` is a multiple of `texts`."""
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
    context = binding.llama_init_from_model(model.handle, params)
    if not context:
        raise ModelError("the context could not be created")
    return context
