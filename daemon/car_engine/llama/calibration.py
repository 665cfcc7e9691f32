"""Costs and memory of a model, measured on a small context before the real context is created."""

import contextlib
import os
from collections.abc import Callable
from contextlib import closing

from car_base.capacity.curve import Curve
from car_base.host.cores import CoresReading, CoresSource, foreign_cores, read_cores, usable_cpus
from car_base.ipc.model_sizes import SequenceBytes
from car_engine.llama.context import LlamaContext
from car_engine.llama.model import LlamaModel

_CELLS = 256
_STEP = 8
_TOKEN = 0
# A saved cell has its position and its sequence beside its numbers, in three integers; some models have places in
# images, too.
_HEAD_BYTES = {False: 12, True: 24}


def sequence_bytes(model: LlamaModel, threads: int) -> SequenceBytes:
    """Return the bytes of one sequence; measured on a small context if layers differ, keep states or windows."""
    if model.metadata.layers_alike and not model.keeps_states and not model.keeps_windows:
        return model.sequence_bytes()
    with closing(LlamaContext(model, sequences=1, context_tokens=_CELLS, threads=threads)) as context:
        if not context.generates or context.context_tokens < 2 * _STEP:
            return model.sequence_bytes()
        whole, state = [], []  # bytes of the saved sequence and of its state, after each of two steps
        for start in (0, _STEP):
            code = context.decode([_TOKEN] * _STEP, list(range(start, start + _STEP)), [0] * _STEP, [False] * _STEP)
            if code != 0:
                raise RuntimeError(f"llama_decode returned {code} where memory is measured")
            whole.append(context.saved_size(0))
            state.append(context.state_size(0) if model.keeps_windows else 0)
    each, windowed = ((sizes[1] - sizes[0]) // _STEP for sizes in (whole, state))
    head = _HEAD_BYTES[model.places_images]
    per_token, windowed_cell = (max(0, size - head) for size in (each - windowed, windowed))
    return SequenceBytes(per_token, whole[0] - _STEP * each, model.masks, windowed_cell, model.window)


# The most decisive sizes first, because time may end before the last.
_PLAN = (
    *(("decode", 1), ("decode", 8), ("prefill", 16), ("decode", 16), ("prefill", 64)),
    *(("decode", 4), ("decode", 2), ("prefill", 8), ("decode", 32), ("prefill", 256)),
)
_REPEATS = 2
# A program without a core of its own takes about half of one from a thread of ours; much less is chance.
_SHARED = 0.25


class Calibration:
    """Measures on a context of up to 32 sequences of 256 cells; times in seconds of `clock`."""

    def __init__(
        self,
        model: LlamaModel,
        need: SequenceBytes,
        *,
        threads: int,
        memory_bytes: int,
        clock: Callable[[], float],
        read_cores: CoresSource = read_cores,
    ) -> None:
        affordable = memory_bytes // max(1, need.of(_CELLS))
        most = max(size for kind, size in _PLAN if kind == "decode")
        sequences = max(1, min(most, affordable, model.traits.most_sequences))
        self._clock = clock
        self._threads = threads
        self._read_cores = read_cores
        self._context = LlamaContext(model, sequences=sequences, context_tokens=_CELLS, threads=threads)

    def measure(self, budget: float) -> Curve:
        """Measure as many sizes as fit into about `budget` seconds, and free the context."""
        decode: dict[int, float] = {}
        prefill: dict[int, float] = {}
        seconds = {"decode": decode, "prefill": prefill}
        before, started = self._cores(), self._clock()
        self._once("decode", 1)
        for kind, size in _PLAN:
            most = self._context.sequences if kind == "decode" else self._context.context_tokens
            known = seconds[kind]
            left = budget - (self._clock() - started)
            if size <= most and _most_s(known, size) * (_REPEATS + 1) <= left:
                seconds[kind][size] = min(self._once(kind, size) for _ in range(_REPEATS + 1))
        others = self._others(before, self._cores(), self._clock() - started)
        self._context.close()
        # A stall of a busy machine may have broken the law. The engine would hardly see such a mistake, because it
        # computes rows apart that look dearer together.
        decode, prefill = ({size: _most_s(costs, size) for size in costs} for costs in (decode, prefill))
        return Curve(decode, prefill, others)

    def _cores(self) -> CoresReading | None:
        """Return the processor times; None if they cannot be read."""
        with contextlib.suppress(OSError):
            return self._read_cores([os.getpid()])
        return None

    def _others(self, before: CoresReading | None, after: CoresReading | None, seconds: float) -> float:
        """Return the cores that other programs used; 0 if they left one to each thread."""
        if before is None or after is None or seconds <= 0:
            return 0.0
        cores = foreign_cores(before, after, seconds)
        return round(cores, 2) if cores > len(usable_cpus()) - self._threads + _SHARED else 0.0

    def _once(self, kind: str, size: int) -> float:
        rows = range(size)
        numbers = list(rows) if kind == "decode" else [0] * size
        positions = [0] * size if kind == "decode" else list(rows)
        outputs = [kind == "decode" or row == size - 1 for row in rows]
        started = self._clock()
        code = self._context.decode([_TOKEN] * size, positions, numbers, outputs)
        self._context.synchronize()
        seconds = self._clock() - started
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} in the calibration")
        for number in set(numbers):
            self._context.cut(number, 0)
        return seconds


def _most_s(known: dict[int, float], size: int) -> float:
    """Return the most that a size costs by the known sizes; 0 without any.

    Costs grow with the size, and at most in proportion, because rows can be computed apart.
    """
    return min((cost * max(1.0, size / other) for other, cost in known.items()), default=0.0)
