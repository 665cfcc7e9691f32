"""The load of a model onto devices: planned, tried, and tried once more with less where memory runs out."""

from collections.abc import Callable
from typing import Protocol

from msgspec import structs

from car_daemon.capacity.placement import Machine, ModelSizes, NoRoom, Placement, devices_of, plan
from car_daemon.engine.llama.devices import readings
from car_daemon.engine.llama.model import LlamaModel, ModelError
from car_daemon.host.devices import Device
from car_daemon.host.memory import read_memory
from car_daemon.ipc.frames import DeviceMemory, DeviceUse, FromEngine, Load, Warned

_MIB = 1 << 20
# The second try uses this part of what the first one used of the free memory of devices.
_SECOND_TRY = 0.8


class KeptPart(Protocol):
    """The part of the free memory of devices with which a model loads, kept from one load to the next."""

    def read(self) -> float:
        """Return the part, 0 to 1."""
        ...

    def keep(self, part: float) -> None:
        """Have the next load begin with this part."""
        ...


class PlacedModel:
    """One model and its placement; None where the load names no GPU, or llama.cpp finds none."""

    def __init__(
        self,
        load: Load,
        open_model: Callable[[Placement | None], LlamaModel],
        send: Callable[[FromEngine], None],
        kept: KeptPart,
        *,
        read: Callable[[], tuple[Device, ...]],
        host_free: Callable[[], int] = lambda: read_memory().available,
    ) -> None:
        self._load = load
        self._open = open_model
        self._send = send
        self._kept = kept
        self._read = read
        self._host_free = host_free
        self.sizes = None if load.sizes is None else ModelSizes.of(load.sizes)
        self.placement: Placement | None = None
        self._before: tuple[Device, ...] = ()  # the devices before the load

    def load(self) -> LlamaModel:
        """Load the model; a second try plans with four fifths of the first one's memory, and so do later loads."""
        self._before = self._devices()
        part = self._kept.read() if self._before else 1.0
        self.placement = self._plan(part)
        self._report_host_part()
        try:
            return self._open(self.placement)
        except ModelError as error:
            if self.placement is None or not self.placement.gpu_layers:
                raise
            first, self.placement = self.placement, self._plan(part * _SECOND_TRY)
            assert self.placement is not None
            facts = {"layers": first.gpu_layers, "tried_next": self.placement.gpu_layers, "why": str(error)}
            self._send(Warned("load.retried", facts))
            model = self._open_again(self.placement, first.gpu_layers)
            self._kept.keep(part * _SECOND_TRY)
            return model

    def _open_again(self, placement: Placement, before: int) -> LlamaModel:
        try:
            return self._open(placement)
        except ModelError as error:
            layers = f"tried with {before} and {placement.gpu_layers} layers on GPUs"
            raise ModelError(f'{error}; {layers}: set fewer gpu_layers, or device = "cpu"') from None

    @property
    def machine(self) -> Machine:
        """The host and the devices of the placement, with what is free now."""
        return Machine(max(0, self._host_free() - self._load.reserve_bytes), self._devices())

    def readings(self) -> list[DeviceMemory]:
        """Return the memory of the placement's devices now."""
        return [] if self.placement is None else readings(self._devices())

    def uses(self) -> list[DeviceUse]:
        """Return what was planned and what is taken on each device now."""
        if self.placement is None:
            return []
        now = self._devices()
        planned = zip(self._before, now, self.placement.slots, self.placement.device_bytes, strict=True)
        return [
            DeviceUse(after.name, slots, size, max(0, before.free - after.free), after.free, after.total)
            for before, after, slots, size in planned
        ]

    def _report_host_part(self) -> None:
        """Warn where a part of the model stays on the host, which answers several times slower."""
        placement, sizes = self.placement, self.sizes
        if placement is None or sizes is None or self._load.gpu_layers >= 0:
            return
        experts, left = len(placement.host_experts), len(sizes.slots) - placement.gpu_layers
        if left or experts:
            self._send(Warned("layers.on_host", {"layers": left, "experts_of": experts, "of": len(sizes.slots)}))

    def _devices(self) -> tuple[Device, ...]:
        if not self._load.gpu_layers:
            return ()
        return devices_of(self._load.device, self._read())

    def _plan(self, part: float) -> Placement | None:
        if self.sizes is None or not self._before:
            return None
        load = self._load
        devices = tuple(structs.replace(each, free=int(each.free * part)) for each in self._before)
        host_free = max(0, self._host_free() - load.reserve_bytes)
        slots = load.gpu_layers if load.gpu_layers >= 0 else None
        found = plan(self.sizes, Machine(host_free, devices), context_tokens=load.context_tokens, slots=slots)
        if isinstance(found, NoRoom):
            needed, free = -(-found.needed // _MIB), found.free // _MIB
            remedy = "set a smaller context_tokens or kv_type, or fewer gpu_layers"
            raise ModelError(f"the model needs {needed} MiB, {free} MiB are free on the host and its GPUs: {remedy}")
        return found
