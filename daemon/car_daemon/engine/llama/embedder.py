"""A second context on the weights that generate: it turns texts into vectors, or scores pairs of them."""

from itertools import chain
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_daemon.engine.llama.context import BatchArrays
from car_daemon.engine.llama.library import quick
from car_daemon.engine.llama.model import LlamaModel, ModelError
from car_daemon.engine.llama.tokens import Vocabulary

Floats = NDArray[np.float32]

_embeddings_of = quick("llama_get_embeddings_seq")
_clear = quick("llama_memory_clear")
_KEEP_BYTES = False
# With flash attention a text's vector depends on what else is in its batch, by up to some percent of a component.
_NO_FLASH_ATTENTION = 0
_POOLINGS = {
    binding.LLAMA_POOLING_TYPE_MEAN: "mean",
    binding.LLAMA_POOLING_TYPE_CLS: "cls",
    binding.LLAMA_POOLING_TYPE_LAST: "last",
    binding.LLAMA_POOLING_TYPE_RANK: "rank",
}
# All texts of a batch share one attention matrix, most of which is masked: larger batches cost more for each text.
PACKED_TOKENS = 64
PACKED_TEXTS = 32


class Embedder:
    """Embeds or scores token lists; every precondition that would abort the process is checked here.

    `dimensions` floats a vector; `pooling` is "mean", "cls", "last" or "rank"; `ranks`: it scores and does not embed;
    `max_tokens`: the longest input.
    """

    def __init__(self, model: LlamaModel, vocabulary: Vocabulary, *, threads: int, context_tokens: int) -> None:
        """Raise ModelError where llama.cpp has no such context for the model."""
        _check_pooling(model)
        self.max_tokens = min(context_tokens, model.trained_context)
        # A recurrent memory holds a whole state for every sequence that it may ever have.
        self._texts = 1 if _is_recurrent(model) else PACKED_TEXTS
        self._batch_tokens = _multiple(max(self.max_tokens, PACKED_TOKENS), PACKED_TEXTS)
        self._vocabulary = vocabulary
        self._context = _open(model, self._texts, self._batch_tokens, threads)
        # None where the model attends to a batch as a whole, as BERT does.
        self._memory = binding.llama_get_memory(self._context)
        self._batch = BatchArrays(self._batch_tokens)
        self.pooling = _POOLINGS[binding.llama_pooling_type(self._context)]
        self.ranks = self.pooling == "rank"
        self.dimensions = int(binding.llama_model_n_embd_out(model.handle))
        if self.ranks and not self._has_head(model, threads):
            self.close()
            raise ModelError("the model is to rank, but has no classification head")

    def compute_with(self, threads: int) -> None:
        """Compute with so many threads from the next batch on."""
        binding.llama_set_n_threads(self._context, threads, threads)

    def batches(self, inputs: list[list[int]]) -> list[list[int]]:
        """Return the indices of the inputs of each batch, in order; ValueError for an input that fits in none."""
        for tokens in inputs:
            self._check_length(len(tokens))
        return pack([len(tokens) for tokens in inputs], self._texts)

    def embed(self, inputs: list[list[int]], *, normalize: bool) -> list[list[float]]:
        """Return the vectors of one batch, of length 1 if asked for; ValueError for what is no batch."""
        if self.ranks:
            raise ValueError("the model ranks and gives no vectors")
        vectors = self._run(inputs, self.dimensions).astype(np.float64)
        if normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(lengths > 0, lengths, 1)
        rows: list[list[float]] = vectors.tolist()
        return rows

    def score(self, pairs: list[list[int]]) -> list[float]:
        """Return the scores of one batch of pairs, as the head gives them; ValueError for what is no batch."""
        if not self.ranks:
            raise ValueError("the model does not rank")
        scores: list[float] = self._run(pairs, 1)[:, 0].tolist()
        return scores

    def close(self) -> None:
        """Free the context."""
        binding.llama_synchronize(self._context)
        binding.llama_free(self._context)

    def _run(self, inputs: list[list[int]], width: int) -> Floats:
        """Decode a batch; the first `width` floats that each input's pooling gives."""
        self._check(inputs)
        return _run(self._context, self._memory, self._batch, inputs, width)

    def _check(self, inputs: list[list[int]]) -> None:
        if not 1 <= len(inputs) <= self._texts:
            raise ValueError(f"a batch has 1 to {self._texts} inputs, not {len(inputs)}")
        for tokens in inputs:
            self._check_length(len(tokens))
            if min(tokens) < 0 or max(tokens) >= self._vocabulary.size:
                raise ValueError("there is no such token")
        count = sum(map(len, inputs))
        if count > self._batch_tokens:
            raise ValueError(f"a batch has at most {self._batch_tokens} tokens, not {count}")

    def _check_length(self, count: int) -> None:
        if not 1 <= count <= self.max_tokens:
            raise ValueError(f"an input has 1 to {self.max_tokens} tokens, not {count}")

    def _has_head(self, model: LlamaModel, threads: int) -> bool:
        """Whether a score is more than the first float of a vector: llama.cpp tells of no missing head."""
        plain = _create(model, binding.LLAMA_POOLING_TYPE_MEAN, 1, PACKED_TEXTS, threads)
        text = [[0]]
        # Every pooling of one token is that token.
        vector = _run(plain, binding.llama_get_memory(plain), self._batch, text, 1)
        binding.llama_free(plain)
        return not np.array_equal(self._run(text, 1), vector)


def pack(lengths: list[int], texts: int) -> list[list[int]]:
    """Return the indices of each batch, in order: at most `texts`, and PACKED_TOKENS tokens unless one has more."""
    packed: list[list[int]] = []
    used = 0
    for index, length in enumerate(lengths):
        if not packed or len(packed[-1]) == texts or used + length > PACKED_TOKENS:
            packed.append([])
            used = 0
        packed[-1].append(index)
        used += length
    return packed


def _run(context: Any, memory: Any, batch: BatchArrays, inputs: list[list[int]], width: int) -> Floats:
    if memory:
        _clear(memory, _KEEP_BYTES)
    tokens = list(chain.from_iterable(inputs))
    positions = list(chain.from_iterable(range(len(one)) for one in inputs))
    numbers = [number for number, one in enumerate(inputs) for _ in one]
    code = binding.llama_decode(context, batch.fill(tokens, positions, numbers, [True] * len(tokens)))
    if code != 0:
        raise RuntimeError(f"llama_decode of a batch to embed returned {code}")
    binding.llama_synchronize(context)
    pooled = [_embeddings_of(context, number) for number in range(len(inputs))]
    if not all(pooled):
        raise RuntimeError("llama.cpp has no vector for a sequence of the batch")
    return np.stack([np.ctypeslib.as_array(one, (width,)) for one in pooled])


def _open(model: LlamaModel, texts: int, batch_tokens: int, threads: int) -> Any:
    """Create a context that pools as the model says, and by the mean where it says nothing."""
    context = _create(model, binding.LLAMA_POOLING_TYPE_UNSPECIFIED, texts, batch_tokens, threads)
    if binding.llama_pooling_type(context) != binding.LLAMA_POOLING_TYPE_NONE:
        return context
    binding.llama_free(context)
    return _create(model, binding.LLAMA_POOLING_TYPE_MEAN, texts, batch_tokens, threads)


def _create(model: LlamaModel, pooling: int, texts: int, batch_tokens: int, threads: int) -> Any:
    """Create a context; the process aborts unless `batch_tokens` is a multiple of `texts`."""
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


def _check_pooling(model: LlamaModel) -> None:
    architecture = model.metadata("general.architecture")
    named = model.metadata(f"{architecture}.pooling_type")
    known = {binding.LLAMA_POOLING_TYPE_UNSPECIFIED, binding.LLAMA_POOLING_TYPE_NONE, *_POOLINGS}
    if named is not None and named not in map(str, known):
        raise ModelError("the model names a pooling that llama.cpp does not know")


def _is_recurrent(model: LlamaModel) -> bool:
    return bool(binding.llama_model_is_recurrent(model.handle) or binding.llama_model_is_hybrid(model.handle))


def _multiple(count: int, of: int) -> int:
    return -(-count // of) * of
