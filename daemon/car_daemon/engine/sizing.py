"""What an engine declares: what its model takes and costs here, and what memory and the user's figures make of that."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from car_daemon.cores import usable_cpus
from car_daemon.engine.capacity import Declared, Need, SequenceBytes, declare
from car_daemon.engine.curve import Curve, CurveFile, identity_of
from car_daemon.engine.frames import FromEngine, Load, Warned
from car_daemon.engine.llama.library import library_build
from car_daemon.engine.llama.model import LlamaModel
from car_daemon.engine.llama.sequence_bytes import sequence_bytes
from car_daemon.engine.llama.trial import Trial
from car_daemon.memory import read_memory

_TINY_WEIGHTS = 32 * 1024 * 1024
# The trial takes about this long, once a model, device and number of threads, and this share of the free memory.
_TRIAL_S = 1.0
_TRIAL_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Size:
    """What was declared, and from what."""

    threads: int
    free_bytes: int
    sequence_bytes: SequenceBytes
    curve_file: CurveFile
    curve: Curve
    declared: Declared

    @property
    def inputs(self) -> dict[str, float]:
        """The figures that decided, for people."""
        rates = {
            f"tokens_per_s_{rows}": round(rows / seconds, 1) for rows, seconds in sorted(self.curve.decode.items())
        }
        kv_bytes = self.sequence_bytes.of(self.declared.context_tokens)
        return {"free_bytes": self.free_bytes, "kv_bytes_per_sequence": kv_bytes, **rates}


def size_of(load: Load, model: LlamaModel, send: Callable[[FromEngine], None]) -> Size:
    """Decide how many sequences of how many tokens a loaded model gets; `send` hears of figures that were lowered."""
    threads = load.threads or default_threads(model.size_bytes)
    free_bytes = _free_bytes(load)
    identity = identity_of(load.path, device=load.device, threads=threads, packed=load.packed, library=library_build())
    curve_file = CurveFile(Path(load.curves) if load.curves else None, identity)
    each = sequence_bytes(model, threads)
    curve = curve_file.remembered(lambda: _measured(model, each, threads, free_bytes))
    declared = declare(_need(load, model, each, curve, free_bytes))
    _warn_of_less(load, declared, send)
    return Size(threads, free_bytes, each, curve_file, curve, declared)


def default_threads(weights_bytes: int) -> int:
    """Return the physical cores that this process may use: hyperthreads slow llama.cpp down.

    A tiny model gets one thread: its threads would wait for each other longer than they work, and with another
    program on the cores by the hundredfold.
    """
    if weights_bytes < _TINY_WEIGHTS:
        return 1
    usable = len(usable_cpus())
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def _free_bytes(load: Load) -> int:
    """Return the memory that is free for this engine."""
    free = max(0, read_memory().available - load.reserve_bytes)
    return free if load.budget_bytes is None else min(free, load.budget_bytes)


def _measured(model: LlamaModel, each: SequenceBytes, threads: int, free_bytes: int) -> Curve:
    """Return what steps of the model cost now."""
    memory = int(free_bytes * _TRIAL_SHARE)
    return Trial(model, each, threads=threads, memory_bytes=memory, clock=time.perf_counter).measure(_TRIAL_S)


def _need(load: Load, model: LlamaModel, each: SequenceBytes, curve: Curve, free_bytes: int) -> Need:
    return Need(
        sequence_bytes=each,
        free_bytes=free_bytes,
        total_bytes=read_memory().total,
        trained_context=model.trained_context,
        policy=load.policy,
        curve=curve,
        max_itl=load.max_itl_ms / 1000,
        context_tokens=load.context_tokens,
        sequences=load.sequences,
        most_sequences=model.traits.most_sequences,
        most_tokens=model.most_tokens,
    )


def _warn_of_less(load: Load, declared: Declared, send: Callable[[FromEngine], None]) -> None:
    """Tell of explicit figures that cannot be had."""
    if load.context_tokens is not None and declared.context_tokens < load.context_tokens:
        send(Warned("context.lowered", {"asked": load.context_tokens, "declared": declared.context_tokens}))
    if declared.asked is not None:
        send(Warned("capacity.lowered", {"asked": declared.asked, "declared": declared.sequences}))
