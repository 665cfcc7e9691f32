"""The calls of ggml that place a model on devices, which a test replaces by invented devices."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from car_base.capacity.placement import Placement
from car_base.host.devices import Device, gpu_number
from car_base.ipc.frames import Load

if TYPE_CHECKING:
    from car_engine.llama.context import LlamaContext
    from car_engine.llama.model import LlamaModel


class Backend(NamedTuple):
    """The GPUs with their memory now, the load of a model onto them, and the memory of its sequences."""

    read_devices: Callable[[], tuple[Device, ...]]
    # Opens a model file as it was planned, or as it is configured; raises ModelError.
    open_model: Callable[[Load, Callable[[float], None], Placement | None], "LlamaModel"]
    # Makes a context of a model for a number of sequences, of tokens, of threads and of rows by which states go back;
    # raises ModelError.
    open_context: Callable[["LlamaModel", int, int, int, int], "LlamaContext"]


def ggml_backend() -> Backend:
    """Return llama.cpp's own."""
    from car_engine.llama.devices import read_devices

    return Backend(read_devices, _open_model, _open_context)


def _open_model(load: Load, progress: Callable[[float], None], placement: Placement | None) -> "LlamaModel":
    # Imported here because the daemon's socket is read before llama.cpp is there.
    from car_engine.llama.model import LlamaModel

    return LlamaModel(
        load.path,
        gpu_layers=load.gpu_layers,
        gpu=gpu_number(load.device),
        packed=load.packed,
        kv_type=load.kv_type,
        placement=placement,
        progress=progress,
    )


def _open_context(
    model: "LlamaModel", sequences: int, context_tokens: int, threads: int, rollback: int
) -> "LlamaContext":
    from car_engine.llama.context import LlamaContext

    return LlamaContext(model, sequences=sequences, context_tokens=context_tokens, threads=threads, rollback=rollback)
