"""Greedy decoding through llama.cpp, several sequences in one batch, prompts in chunks."""

import ctypes
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp

MAX_TOKENS = 320
THREADS = 1  # so small a model loses more by waiting for other threads than it gains
_SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)


@dataclass(frozen=True)
class Completion:
    """The model's text, its own end if it had one, and the smallest lead of a chosen token in logits."""

    text: str
    tokens: int
    ended: bool
    margin: float


@dataclass
class _Running:
    """One prompt on its way: `done` tokens of it are in the cache, then come `written`."""

    index: int
    prompt: list[int]
    done: int = 0
    written: list[int] = field(default_factory=list)
    margin: float = float("inf")

    def next_tokens(self, chunk: int) -> list[int]:
        """The rows of the next step: a chunk of the prompt or the last written token."""
        return self.prompt[self.done : self.done + chunk] or self.written[-1:]


class Decoder:
    """A model, a context of `sequences` streams, and one batch; `chunk` bounds the prompt tokens a step."""

    def __init__(self, path: Path, *, sequences: int, chunk: int, context: int) -> None:
        llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._sequences, self._chunk = sequences, chunk
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise OSError(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = context * sequences, sequences
        parameters.n_batch = parameters.n_ubatch = chunk * sequences
        parameters.kv_unified = False
        parameters.n_threads = parameters.n_threads_batch = THREADS
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._size = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self._batch = llama_cpp.llama_batch_init(chunk * sequences, 0, 1)

    def close(self) -> None:
        """Free the batch, the context and the model."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def template(self) -> str:
        """The chat template in the model's metadata."""
        return str(llama_cpp.llama_model_chat_template(self._model, None).decode())

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of a text."""
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 2))()
        count = llama_cpp.llama_tokenize(self._vocabulary, data, len(data), ids, len(ids), add_special, parse_special)
        return list(ids[:count])

    def text_of(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; a control token has some only with `special`."""
        buffer = ctypes.create_string_buffer(256)
        size = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, special)
        return buffer.raw[:size]

    def begin_text(self) -> str:
        """The begin token as the chat template writes it."""
        return self.text_of(llama_cpp.llama_vocab_bos(self._vocabulary), special=True).decode()

    def complete(self, prompts: list[list[int]]) -> list[Completion]:
        """One greedy completion a prompt; as many at once as there are sequences."""
        waiting = deque(_Running(index, prompt) for index, prompt in enumerate(prompts))
        running: dict[int, _Running] = {}
        completions: dict[int, Completion] = {}
        while waiting or running:
            for sequence in range(self._sequences):
                if sequence not in running and waiting:
                    llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
                    running[sequence] = waiting.popleft()
            for sequence, request in self._step(running):
                completions[request.index] = self._completion(request)
                del running[sequence]
        return [completions[index] for index in range(len(prompts))]

    def _step(self, running: dict[int, _Running]) -> list[tuple[int, _Running]]:
        """One `llama_decode` for everybody; what ended with it."""
        outputs = self._fill(running)
        code = llama_cpp.llama_decode(self._context, self._batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        ended = []
        for sequence, row in outputs.items():
            request = running[sequence]
            self._choose(request, row)
            if self._is_over(request):
                ended.append((sequence, request))
        return ended

    def _fill(self, running: dict[int, _Running]) -> dict[int, int]:
        """Write everybody's rows into the batch; sequence → row whose logits are wanted."""
        batch, row = self._batch, 0
        outputs: dict[int, int] = {}
        for sequence, request in sorted(running.items()):
            for token in request.next_tokens(self._chunk):
                batch.token[row], batch.pos[row] = token, request.done
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                batch.logits[row] = False
                request.done += 1
                row += 1
            if request.done >= len(request.prompt):
                batch.logits[row - 1] = True
                outputs[sequence] = row - 1
        batch.n_tokens = row
        return outputs

    def _choose(self, request: _Running, row: int) -> None:
        """Take the likeliest token of a row; RuntimeError for logits that are no numbers."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        logits = np.ctypeslib.as_array(pointer, shape=(self._size,))
        if not np.isfinite(logits).all():
            raise RuntimeError("the model computed logits that are not finite")
        second, first = np.partition(logits, -2)[-2:]
        request.margin = min(request.margin, float(first - second))
        request.written.append(int(logits.argmax()))

    def _is_over(self, request: _Running) -> bool:
        return self._ended(request) or len(request.written) >= MAX_TOKENS

    def _ended(self, request: _Running) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, request.written[-1]))

    def _completion(self, request: _Running) -> Completion:
        text = b"".join(map(self.text_of, request.written)).decode(errors="replace")
        return Completion(text, len(request.written), self._ended(request), request.margin)
