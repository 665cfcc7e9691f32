"""A second context on a model's weights that turns texts into vectors, or scores queries with documents."""

from collections import deque

import numpy as np
from llama_cpp import llama_cpp as binding

from car_base.capacity.batch_sizes import BATCH_SIZES
from car_engine.llama.model import NO_NUMBERS, LlamaModel, ModelError
from car_engine.llama.text_context import POOLINGS, Floats, RowsContext, TextContext
from car_engine.llama.tokens import Vocabulary

# Vectors of two ways to pool them that differ by this part of the largest value are the same, but for rounding.
_ROUNDING = 1e-4
PACKED_TEXTS = 32


class Embedder:
    """Embeds or scores token lists; every precondition that would abort the process is checked here.

    A vector has `dimensions` floats; `pooling` is "mean", "cls", "last" or "rank"; with `ranks` it scores and does not
    embed; an input has at most `max_tokens`.
    """

    def __init__(self, model: LlamaModel, vocabulary: Vocabulary, *, threads: int, context_tokens: int) -> None:
        """Raise ModelError where llama.cpp has no such context for the model, or its weights make every number NaN."""
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

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def _open(self, model: LlamaModel, threads: int) -> TextContext:
        """Open the context of the model's pooling, or of the mean; a faster one where that has the same vectors."""
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
