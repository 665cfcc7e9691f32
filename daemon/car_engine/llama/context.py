"""One llama.cpp context: a KV stream for every sequence, and the batches that feed it."""

import ctypes
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as binding
from numpy.typing import NDArray

from car_base.capacity.curve import BATCH_SIZES
from car_base.ipc.types import KvType
from car_engine.batching.reuse.index import Memory
from car_engine.llama.library import errors, is_about, pointer, quick
from car_engine.llama.model import NO_NUMBERS, LlamaModel, ModelError, OutOfReach
from car_engine.llama.sampler import Logits, Sampler

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


_sample = quick("llama_sampler_sample")
_logits = quick("llama_get_logits_ith")
_seq_cp = quick("llama_memory_seq_cp")
_seq_rm = quick("llama_memory_seq_rm")
_seq_pos_max = quick("llama_memory_seq_pos_max")
_FLASH_ATTENTION_AUTO = -1
_KV_TYPES: dict[KvType, int] = {
    "f16": binding.GGML_TYPE_F16,
    "q8_0": binding.GGML_TYPE_Q8_0,
    "q4_0": binding.GGML_TYPE_Q4_0,
}
_NO_KV_TYPE = (
    'the context could not be created with kv_type = "{}": it needs flash attention, and heads whose size is a '
    'multiple of 32; set it to "f16"'
)
_NO_MEMORY = (
    "the memory for {} sequences of {} tokens could not be allocated: set a smaller context_tokens, or fewer sequences"
)
# Result of a decode without enough free cells.
_FULL = 1
# Flags of llama_state_seq_*_ext: a whole sequence, or its recurrent state and windows without the cells.
_WHOLE = 0
_STATE = binding.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class LlamaContext:
    """A context of `sequences` streams; every precondition that would abort the process is checked here."""

    def __init__(
        self, model: LlamaModel, *, sequences: int, context_tokens: int, threads: int, rollback: int = 0
    ) -> None:
        self.sequences = sequences
        sizes = BATCH_SIZES[model.computes_on].for_sequences(sequences)
        self.batch_tokens = sizes.call
        params = binding.llama_context_default_params()
        params.n_ctx = context_tokens * sequences
        params.n_seq_max = sequences
        params.n_batch, params.n_ubatch = sizes.call, sizes.graph
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.swa_full = False
        params.n_rs_seq = rollback
        params.type_k = params.type_v = _KV_TYPES[model.kv_type]
        params.flash_attn_type = _FLASH_ATTENTION_AUTO
        params.no_perf = True
        with errors() as logged:
            self._context = binding.llama_init_from_model(model.handle, params)
        if not self._context:
            raise _failure(logged, model.kv_type, sequences, context_tokens)
        self._memory = binding.llama_get_memory(self._context)
        cells = int(binding.llama_n_ctx_seq(self._context))
        self.context_tokens = cells if model.most_tokens is None else min(cells, model.most_tokens)
        self._row: Any = ctypes.c_float * int(binding.llama_vocab_n_tokens(model.vocab))  # the type of its logits
        self._width = int(binding.llama_model_n_embd_inp(model.handle))
        self.memory = Memory(
            states=model.keeps_states,
            windows=model.keeps_windows,
            # 0 if llama.cpp keeps no earlier states of this architecture.
            rollback=int(binding.llama_n_rs_seq(self._context)),
        )
        self._batch = BatchArrays(self.batch_tokens)
        self._outputs: frozenset[int] = frozenset()  # rows of the last decode with logits; empty if it failed
        self._copied_to: int | None = None  # the last target of `copy`, until a decode copies the cells
        self._rolled_back: set[int] = set()  # sequences whose states went back since their last decode

    def __repr__(self) -> str:
        return f"<LlamaContext sequences={self.sequences} context_tokens={self.context_tokens}>"

    def set_threads(self, threads: int) -> None:
        """Set the number of threads, from the next decode on."""
        binding.llama_set_n_threads(self._context, threads, threads)

    def decode(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> int:
        """Decode one batch; return 0, or llama.cpp's code if it failed."""
        self._outputs = frozenset()
        if not 1 <= len(tokens) <= self.batch_tokens:
            raise ValueError(f"a batch has 1 to {self.batch_tokens} rows, not {len(tokens)}")
        batch = self._batch.fill(tokens, positions, numbers, outputs)
        code: int = binding.llama_decode(self._context, batch)
        if self._rolled_back:
            self._rolled_back.difference_update(numbers)
        if code == 0:
            self._settle(row for row, output in enumerate(outputs) if output)
        return code

    def decode_rows(self, rows: Rows, start: int, number: int, *, output: bool) -> int:
        """Decode rows of an image (count, width) for one sequence; return 0, or llama.cpp's code if it failed."""
        self._outputs = frozenset()
        self._check(number)
        code: int = binding.llama_decode(self._context, self._rows.fill(rows, start, number, output_last=output))
        if code == 0:
            self._settle([len(rows) - 1] if output else [])
        return code

    def _settle(self, outputs: Iterable[int]) -> None:
        """Record the rows of a decode that have logits, and that pending copies are done."""
        self._copied_to = None
        self._outputs = frozenset(outputs)
        if not self._outputs:
            # Without logits to read a device may still be computing, and its time would count for the next decode.
            self.synchronize()

    def sample(self, sampler: Sampler, row: int) -> int:
        """Return and accept the next token of an output row of the last decode."""
        if not sampler.chain:
            raise ValueError("the sampler is closed")
        token = sampler.short_way(self.logits(row))
        if token is None:
            token = _sample(sampler.chain, self._context, row)
            sampler.accepted(token)
        return token

    def adapt(self, adapters: Sequence[tuple[Any, float]]) -> None:
        """Set the adapters (handles of this model) and scales of the next decodes, in place of all others."""
        count = len(adapters)
        handles = (binding.llama_adapter_lora_p_ctypes * count)(*[handle for handle, _ in adapters])
        scales = (ctypes.c_float * count)(*[scale for _, scale in adapters])
        if binding.llama_set_adapters_lora(self._context, handles, count, scales) != 0:
            raise RuntimeError("llama.cpp refused a set of adapters")

    def logits(self, row: int) -> Logits:
        """Return the logits of an output row of the last decode; the next decode overwrites them."""
        self._check_output(row)
        address = _logits(self._context, row)
        # as_array would make three calls of Python for each token.
        return np.frombuffer(self._row.from_address(ctypes.addressof(address.contents)), np.float32)

    @cached_property
    def _rows(self) -> EmbeddingBatch:
        return EmbeddingBatch(self.batch_tokens, self._width)

    def cut(self, number: int, start: int) -> None:
        """Remove a sequence's cells from position `start` on; with states all, or none."""
        self._check(number)
        if self.memory.rollback and start and (rows := self.last_position(number) + 1 - start) > 0:
            # llama.cpp takes any: beyond these rows, and a second time, its logits would be wrong.
            if number in self._rolled_back or rows > self.memory.rollback:
                raise RuntimeError(f"the states of sequence {number} cannot go back by {rows} rows now")
            self._rolled_back.add(number)
        self._remove(number, start)

    def _remove(self, number: int, start: int) -> None:
        if not _seq_rm(self._memory, number, start, -1):
            raise RuntimeError(f"llama.cpp keeps the cells of sequence {number} from {start} on")
        if start == 0:
            self._rolled_back.discard(number)

    def last_position(self, number: int) -> int:
        """Return the last position of a sequence, -1 if it is empty."""
        self._check(number)
        position: int = _seq_pos_max(self._memory, number)
        return position

    @property
    def generates(self) -> bool:
        """True if the model has a KV cache or states; models that only embed have neither."""
        return bool(self._memory)

    def try_out(self) -> None:
        """Decode two tokens of sequence 0; raises ModelError if that fails, or the weights make every logit NaN."""
        if self.decode([0, 0], [0, 1], [0, 0], [False, True]) != 0:
            raise ModelError("the model cannot decode")
        if np.isnan(self.logits(1)).all():
            raise ModelError(NO_NUMBERS)
        binding.llama_memory_clear(self._memory, True)

    def copy(self, source: int, target: int) -> None:
        """Copy the cells of a sequence to an empty one; the next decode copies a full sequence's worth of memory."""
        self._check(source)
        self._check(target)
        if source == target or self.last_position(target) >= 0:
            raise ValueError(f"the cells of sequence {source} cannot be copied to {target}")
        # Copying a part would abort the process. The positions are copied at once, the contents by the next decode.
        _seq_cp(self._memory, source, target, -1, -1)
        self._copied_to = target
        # A copy forgets that the states of its source went back; a state that is saved does not.
        if source in self._rolled_back and not self._restored(target, self._saved(source, _STATE), _STATE):
            raise RuntimeError("llama.cpp refused the state of a sequence in its copy")

    @property
    def copying(self) -> bool:
        """True if the next decode also copies cells."""
        return self._copied_to is not None

    def _flush_copy(self) -> None:
        """Copy now, because cells that are saved or restored before the next decode would be wrong."""
        if self._copied_to is None:
            return
        number, self._copied_to = self._copied_to, None
        cells = self.last_position(number) + 1
        # The state is copied already, and the row changes it.
        state = self._saved(number, _STATE) if self.memory.states else None
        # In a full sequence the decode fails after the copy.
        if self.decode([0], [cells], [number], [False]) not in (0, _FULL):
            raise RuntimeError("the decode that copies cells failed")
        if state is None:
            self.cut(number, cells)
        elif not self.restore_state(number, state, cells):
            raise RuntimeError("llama.cpp refused the state that it saved before a copy")

    def saved_size(self, number: int) -> int:
        """Return the size of a saved sequence, in bytes."""
        self._check(number)
        return int(binding.llama_state_seq_get_size_ext(self._context, number, _WHOLE))

    def save(self, number: int) -> memoryview:
        """Return a sequence's cells and its state."""
        self._flush_copy()
        return self._saved(number, _WHOLE)

    def restore(self, number: int, saved: memoryview) -> bool:
        """Restore cells into an empty sequence, not only that of `save`; return False if llama.cpp refuses."""
        self._check(number)
        self._flush_copy()
        return self._restored(number, saved, _WHOLE)

    def state_size(self, number: int) -> int:
        """Return the size of a sequence's saved state, in bytes."""
        self._check(number)
        return int(binding.llama_state_seq_get_size_ext(self._context, number, _STATE))

    def save_state(self, number: int) -> memoryview:
        """Return a sequence's state: the recurrent one, and windows."""
        self._flush_copy()
        return self._saved(number, _STATE)

    def restore_state(self, number: int, state: memoryview, tokens: int) -> bool:
        """Put the state after so many tokens over a sequence that begins with these; False if llama.cpp refuses.

        The caller proves that it is the state of the very same tokens: llama.cpp takes any.
        """
        last = self.last_position(number)
        if last < tokens - 1:
            raise ValueError(f"sequence {number} has {last + 1} cells, and a state of {tokens} needs as many")
        if self.memory.windows:
            # A pending copy would overwrite them; recurrent states are copied at once.
            self._flush_copy()
        if not self._restored(number, state, _STATE):
            return False
        self._remove(number, tokens)
        self._rolled_back.discard(number)
        if (last := self.last_position(number)) != tokens - 1:
            raise RuntimeError(f"sequence {number} ends at {last} where its state is that after {tokens} tokens")
        return True

    def _saved(self, number: int, flags: int) -> memoryview:
        self._check(number)
        # Fresh memory costs far more than the copy: it is written once and never copied again.
        saved = np.empty(int(binding.llama_state_seq_get_size_ext(self._context, number, flags)), np.uint8)
        data = pointer(saved, ctypes.c_uint8)
        written = binding.llama_state_seq_get_data_ext(self._context, data, saved.size, number, flags)
        if written != saved.size:
            raise RuntimeError(f"llama.cpp saved {written} of {saved.size} bytes")
        return saved.data

    def _restored(self, number: int, saved: memoryview, flags: int) -> bool:
        data = pointer(np.frombuffer(saved, np.uint8), ctypes.c_uint8)
        read = binding.llama_state_seq_set_data_ext(self._context, data, len(saved), number, flags)
        return int(read) == len(saved)

    def synchronize(self) -> None:
        """Wait until the device is done with the last decode."""
        binding.llama_synchronize(self._context)

    def close(self) -> None:
        """Free the context; samplers have to be freed before."""
        self.synchronize()
        binding.llama_free(self._context)

    def _check_output(self, row: int) -> None:
        if row not in self._outputs:
            raise ValueError(f"row {row} has no logits")

    def _check(self, number: int) -> None:
        if not 0 <= number < self.sequences:
            raise ValueError(f"sequence {number} is outside 0 to {self.sequences - 1}")


def _failure(logged: list[str], kv_type: KvType, sequences: int, context_tokens: int) -> ModelError:
    """Return why a context was not created, by what llama.cpp logged."""
    if is_about(logged, "cache type", "quantized V cache"):
        return OutOfReach(_NO_KV_TYPE.format(kv_type))
    if is_about(logged, "failed to allocate"):
        return ModelError(_NO_MEMORY.format(sequences, context_tokens))
    return ModelError("the context could not be created")


class BatchArrays:
    """A llama_batch over numpy arrays of our own; it must never reach llama_batch_free."""

    def __init__(self, rows: int) -> None:
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._numbers = np.zeros(rows, np.int32)
        self._outputs = np.zeros(rows, np.int8)
        address = self._numbers.ctypes.data
        item = self._numbers.itemsize
        # Every row belongs to one sequence: its list of ids is one cell of `_numbers`.
        self._pointers = np.arange(address, address + rows * item, item, dtype=np.uintp)
        self._batch = binding.llama_batch(
            n_tokens=0,
            token=pointer(self._tokens, binding.llama_token),
            embd=None,
            pos=pointer(self._positions, binding.llama_pos),
            n_seq_id=pointer(self._counts, ctypes.c_int32),
            seq_id=pointer(self._pointers, ctypes.POINTER(binding.llama_seq_id)),
            logits=pointer(self._outputs, ctypes.c_int8),
        )

    def fill(self, tokens: list[int], positions: list[int], numbers: list[int], outputs: list[bool]) -> Any:
        """Write the columns and return the batch."""
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._numbers[:count] = numbers
        self._outputs[:count] = outputs
        self._batch.n_tokens = count
        return self._batch
