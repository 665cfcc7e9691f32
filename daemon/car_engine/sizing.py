"""The declared capacity of an engine, from its model's memory and cost, the machine, and the configuration."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from car_base.capacity.capacity import HOST_PART, CapacityInputs, Declared, declare, longest_context
from car_base.capacity.curve import Curve
from car_base.capacity.kept_file import CurveFile, identity_of
from car_base.capacity.placement import cells_room
from car_base.host.cores import usable_cpus
from car_base.host.memory import read_memory
from car_base.ipc.frames import FromEngine, Load, Warned
from car_base.ipc.model_sizes import SequenceBytes
from car_base.ipc.types import COST_CORES
from car_engine.llama.calibration import Calibration, sequence_bytes
from car_engine.llama.library import library_build
from car_engine.llama.model import LlamaModel
from car_engine.placed_model import PlacedModel

_TINY_WEIGHTS = 32 * 1024 * 1024
# Time of the calibration, once per model, device and number of threads, and its share of the free memory.
_CALIBRATION_S = 1.0
_CALIBRATION_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class DeclaredSize:
    """The declared capacity and its inputs; `longest` is the context that a single sequence could have."""

    threads: int
    free_bytes: int
    sequence_bytes: SequenceBytes
    curve_file: CurveFile
    curve: Curve
    declared: Declared
    longest: int

    @property
    def inputs(self) -> dict[str, float]:
        """The figures behind the decision, for status reports."""
        rates = {
            f"tokens_per_s_{rows}": round(rows / seconds, 1) for rows, seconds in sorted(self.curve.decode.items())
        }
        kv_bytes = self.sequence_bytes.of(self.declared.context_tokens)
        others = {COST_CORES: self.curve.others} if self.curve.others else {}
        return {"free_bytes": self.free_bytes, "kv_bytes_per_sequence": kv_bytes, **rates, **others}


def curve_file_of(load: Load, threads: int, layers: str) -> CurveFile:
    """Return the file of the costs that a model has with so many threads and these layers on GPUs."""
    identity = identity_of(
        load.path,
        device=load.device,
        threads=threads,
        packed=load.packed,
        library=library_build(),
        kv_type=load.kv_type,
        layers=layers,
    )
    return CurveFile(Path(load.curves) if load.curves else None, identity)


def size_of(
    load: Load,
    model: LlamaModel,
    placed: PlacedModel[Any],
    send: Callable[[FromEngine], None],
) -> DeclaredSize:
    """Decide the sequences and context of a loaded model; sends warnings about configured figures that are too high."""
    threads = load.threads or default_threads(model.size_bytes)
    free_bytes, part = _memory(placed)
    curve_file = curve_file_of(load, threads, layers_of(load, placed))
    each = sequence_bytes(model, threads)
    memory_bytes = int(free_bytes * _CALIBRATION_SHARE)
    calibration = Calibration(model, each, threads=threads, memory_bytes=memory_bytes, clock=time.perf_counter)
    curve = curve_file.remembered(lambda: calibration.measure(_CALIBRATION_S))
    inputs = CapacityInputs(
        sequence_bytes=each,
        free_bytes=free_bytes,
        total_bytes=read_memory().total,
        trained_context=_longest(model, placed),
        policy=load.policy,
        curve=curve,
        max_itl=load.max_itl_ms / 1000,
        context_tokens=load.context_tokens,
        sequences=load.sequences,
        most_sequences=model.traits.most_sequences,
        most_tokens=model.most_tokens,
        part=part,
    )
    declared = declare(inputs)
    if load.context_tokens is not None and declared.context_tokens < load.context_tokens:
        send(Warned("context.lowered", {"asked": load.context_tokens, "declared": declared.context_tokens}))
    if declared.requested is not None:
        send(Warned("capacity.lowered", {"asked": declared.requested, "declared": declared.sequences}))
    return DeclaredSize(
        threads, free_bytes, inputs.sequence_bytes, curve_file, curve, declared, longest_context(inputs)
    )


def layers_of(load: Load, placed: PlacedModel[Any]) -> str:
    """Return where the layers are, because a part of a model on a GPU takes other times than all of it."""
    if placed.placement is None:
        return str(load.gpu_layers) if load.gpu_layers else ""
    split, experts = placed.placement.slots, placed.placement.host_experts
    return f"{split} {experts}" if placed.placement.gpu_layers else ""


def _memory(placed: PlacedModel[Any]) -> tuple[int, float]:
    """Return the free bytes for sequences, and the part of these that an engine takes by itself."""
    free = placed.free_memory
    if placed.sizes is None or placed.placement is None or not placed.placement.gpu_layers:
        return free.host_free, HOST_PART
    # Whatever is on the host is bounded by its part already, and a device is there for its model.
    return cells_room(placed.sizes, placed.placement, free, HOST_PART), 1.0


def _longest(model: LlamaModel, placed: PlacedModel[Any]) -> int:
    """Return the most tokens of a sequence: on GPUs no more than the plan has masks for."""
    if placed.placement is None or not placed.placement.gpu_layers:
        return model.trained_context
    return min(model.trained_context, placed.placement.mask_tokens)


def default_threads(weights_bytes: int) -> int:
    """Return the number of physical cores that this process may use: hyperthreads slow llama.cpp down.

    A tiny model gets one thread: several would wait for each other longer than they work, a hundred times as long
    beside another program on the cores.
    """
    if weights_bytes < _TINY_WEIGHTS:
        return 1
    usable = len(usable_cpus())
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
