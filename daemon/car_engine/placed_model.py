"""The load of a model onto devices: planned, tried, and tried once more with less if memory runs out."""

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import structs

from car_base.capacity.kept_file import DeviceParts
from car_base.capacity.placement import (
    FreeMemory,
    NoRoom,
    Placement,
    device_bytes,
    devices_of,
    plan,
    reserve_of,
    usable,
    weights_of,
)
from car_base.host.devices import Device
from car_base.host.memory import read_memory
from car_base.ipc.frames import DeviceMemory, DeviceUse, FromEngine, Load, Warned
from car_base.ipc.ranges import Facts, line
from car_engine.llama.devices import readings
from car_engine.llama.model import ModelError, OutOfReach

_MIB = 1 << 20
_REMEDY = "set a smaller context_tokens or kv_type, or fewer gpu_layers"
# Where the entry names a GPU, on which no layer finds room.
_FREE_IT = ', end what else is on the GPU, or set device = "auto", by which the CPU has what a GPU does not hold'

T = TypeVar("T")


class PlacedModel(Generic[T]):
    """One model and its placement; None if the load names no GPU, or llama.cpp finds none.

    `allocate` takes the memory of the model and of its sequences as it was planned, or none; it raises ModelError.
    """

    def __init__(
        self,
        load: Load,
        allocate: Callable[[Placement | None], T],
        send: Callable[[FromEngine], None],
        *,
        kept: DeviceParts,
        keep: Callable[[DeviceParts], None],
        read: Callable[[], tuple[Device, ...]],
        host_free: Callable[[], int] = lambda: read_memory().available,
    ) -> None:
        self._load = load
        self._allocate = allocate
        self._send = send
        self._kept = kept  # the parts of the free memory that earlier loads used
        self._keep = keep
        self._read = read
        self._host_free = host_free
        self.sizes = load.sizes
        self.placement: Placement | None = None
        self._before: tuple[Device, ...] = ()  # the devices before the load
        self._part = 1.0  # of their free memory, for the plan

    def load(self) -> T:
        """Load the model; a second try plans with less of the memory, and so do later loads."""
        self._before = self._devices()
        free, kept = sum(each.free for each in self._before), self._kept
        tried = [kept.first(free)]
        self.placement = self._plan(tried[0])
        self._report_host_part()
        try:
            made = self._allocate(self.placement)
        except ModelError as error:
            if isinstance(error, OutOfReach) or self.placement is None or not self.placement.gpu_layers:
                raise
            first = self.placement.gpu_layers
            tried.append(kept.second(free, tried[0]))
            made = self._again(first, tried[1], error)
        if self.placement is not None and (parts := kept.after(free, tried)) is not kept:
            self._keep(parts)
        return made

    def _again(self, first: int, part: float, error: ModelError) -> T:
        try:
            self.placement = self._plan(part)
        except ModelError as another:
            raise ModelError(f"{error}; with {part:.0%} of what is free on GPUs, {another}") from None
        layers = 0 if self.placement is None else self.placement.gpu_layers
        facts: Facts = {"layers": first, "tried_next": layers, "part": part, "why": line(str(error))}
        self._send(Warned("load.retried", facts))
        try:
            return self._allocate(self.placement)
        except OutOfReach:
            raise
        except ModelError as another:
            tried = f"tried with {first} and {layers} layers on GPUs"
            raise ModelError(
                f'{another}; {tried}: set fewer gpu_layers, a smaller context_tokens or device = "cpu"'
            ) from None

    @property
    def free_memory(self) -> FreeMemory:
        """The host and the devices of the placement, with what is free now of the part that was planned with."""
        devices = self._devices()
        if self.placement is not None and self.sizes is not None:
            weights, _ = weights_of(self.sizes, self.placement)
            parts = [int(before.free * self._part) - size for before, size in zip(self._before, weights, strict=True)]
            left = zip(devices, parts, strict=True)
            devices = tuple(structs.replace(each, free=max(0, min(each.free, part))) for each, part in left)
        return FreeMemory(self._host_room(self.host_weights), devices)

    def readings(self) -> list[DeviceMemory]:
        """Return the memory of the placement's devices now."""
        return [] if self.placement is None else readings(self._devices())

    def uses(self, sequences: int, context_tokens: int) -> list[DeviceUse]:
        """Return the plan with the sequences that the model got, and what is taken, of each device now."""
        if self.placement is None or self.sizes is None:
            return []
        now = self._devices()
        sizes = device_bytes(self.sizes, self.placement, sequences, context_tokens)
        return [
            DeviceUse(after.name, slots, size, max(0, before.free - after.free), after.free, after.total)
            for before, after, slots, size in zip(self._before, now, self.placement.slots, sizes, strict=True)
        ]

    @property
    def host_weights(self) -> int:
        """Bytes of the weights that a plan on devices leaves on the host."""
        if self.placement is None or self.sizes is None:
            return 0
        return weights_of(self.sizes, self.placement)[1]

    def _report_host_part(self) -> None:
        """Warn if a part of the model stays on the host, which answers several times slower."""
        placement, sizes = self.placement, self.sizes
        if placement is None or sizes is None or self._load.gpu_layers >= 0:
            return
        experts, left = len(placement.host_experts), len(sizes.slots) - placement.gpu_layers
        if left or experts:
            self._send(Warned("layers.on_host", {"layers": left, "experts_of": experts, "of": len(sizes.slots)}))

    def _devices(self) -> tuple[Device, ...]:
        if not self._load.gpu_layers:
            return ()
        place, found = self._load.device, usable(self._read())
        chosen = devices_of(place, found)
        if found and not chosen:
            names = ", ".join(f"gpu{number} ({each.name})" for number, each in enumerate(found))
            raise OutOfReach(
                f"{place}: llama.cpp finds {len(found)} GPUs, {names}: set device to one of them, or to gpu"
            )
        return chosen

    def _host_room(self, taken: int = 0) -> int:
        """Return the free bytes of the host less the reserve, within the budget less the `taken` bytes."""
        room, budget = self._host_free() - self._load.reserve_bytes, self._load.budget_bytes
        return max(0, room if budget is None else min(room, budget - taken))

    def _plan(self, part: float) -> Placement | None:
        if self.sizes is None or not self._before:
            return None
        load = self._load
        self._part = part / load.sharing
        devices = tuple(structs.replace(each, free=int(each.free * self._part)) for each in self._before)
        slots = load.gpu_layers if load.gpu_layers >= 0 else None
        found = plan(
            self.sizes,
            FreeMemory(self._host_room(), devices),
            context_tokens=load.context_tokens,
            sequences=load.sequences,
            slots=slots,
            # Because answers of a model that is stated to be on a GPU would come from the CPU.
            least_slots=1 if load.stated else 0,
        )
        if isinstance(found, NoRoom):
            lacking, free = -(-(found.needed - found.free) // _MIB), found.free // _MIB
            on = ", ".join(f"{max(0, each.free - reserve_of(each)) // _MIB} on {each.name}" for each in devices)
            remedy = _REMEDY + (_FREE_IT if load.stated and slots is None else "")
            raise ModelError(f"the model lacks {lacking} MiB beside the {free} MiB that are free ({on}): {remedy}")
        return found
