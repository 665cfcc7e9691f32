"""The configuration of a model's load."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, structs

from car_base.host.devices import CPU, GPU
from car_base.ipc.engine_settings import EngineSettings
from car_protocol.meta import note
from car_protocol.models import Defaults

CACHE_BYTES = 4 * 1024 * 1024 * 1024

Place = Literal["here", "ray"]
Spread = bool | Literal["strict"]


class Needs(Struct, frozen=True, forbid_unknown_fields=True):
    """The needs of one engine: free cores and GPUs (None: by threads and device), memory, resources by name.

    Values of `labels` may be Ray's expressions, such as `in(a, b)`.
    """

    cpus: Annotated[
        Annotated[float, Meta(ge=0.0001, le=4096)] | None, note("cores; `threads` of the model if absent, else 1")
    ] = None
    gpus: Annotated[
        Annotated[float, Meta(ge=0, le=64)] | None,
        note('GPUs, whole or a part of one; 1 with `device = "gpu"` if absent, else 0'),
    ] = None
    memory_bytes: Annotated[int, Meta(ge=0, le=2**62), note("memory")] = 0
    labels: Annotated[
        dict[str, str], note("labels of the node; a value may be an expression of Ray's, such as `in(a, b)`")
    ] = {}
    resources: Annotated[dict[str, Annotated[float, Meta(ge=0.0001, le=1e9)]], note("amounts of custom resources")] = {}


class ModelSettings(EngineSettings, frozen=True):
    """The options of a load; None leaves the choice to the engine. `pull` is the command that downloads the file."""

    path: Path
    pull: str | None = None
    curves: Path | None = None
    cache_dir: Path | None = None
    cache_bytes: int = CACHE_BYTES
    gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    auto: bool = False  # `devices` follow from what llama.cpp finds
    replicas: int = 1
    adapters: dict[str, Path] = field(default_factory=dict)
    projector: Path | None = None
    chat_template: Path | None = None
    keep_alive_s: float = 600.0
    pinned: bool = False
    defaults: Defaults = Defaults()
    temperatures: dict[str, float] = field(default_factory=dict)  # of decisions, by type of question
    aliases: tuple[str, ...] = ()
    place: Place = "here"
    spread: Spread = True
    needs: Needs = Needs()
    hub: str | None = None  # the hub's name of the file, for nodes that do not have it

    @property
    def placed(self) -> bool:
        """Whether its engines run on machines of a cluster."""
        return self.place != "here"

    @property
    def beside(self) -> list[Path]:
        """The files that an engine reads beside its model."""
        files = (self.projector, self.chat_template, *self.adapters.values())
        return [each for each in files if each is not None]

    @property
    def places(self) -> list[str]:
        """The device of each replica."""
        return list(self.devices or (GPU if self.gpu_layers else CPU,)) * self.replicas

    def on(self, device: str) -> "ModelSettings":
        """Return the settings with `device` in place of `auto`, and all layers on a GPU as far as they fit."""
        if not self.auto:
            return self
        return structs.replace(self, devices=(device,), gpu_layers=-1 if device == GPU else 0)

    def layers_on(self, device: str) -> int:
        """Return the number of layers that a replica keeps on a device; -1 is all layers."""
        return 0 if device == CPU else self.gpu_layers
