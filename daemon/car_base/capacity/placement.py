"""The placement of a model: its layers and experts on devices and on the host, planned before anything is loaded."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from car_base.capacity.capacity import LEAST_CONTEXT
from car_base.host.devices import Device, gpu_number
from car_base.ipc.model_sizes import CELLS, ModelSizes, SequenceBytes, whole_cells

# Left free on a device for its driver, and for what a graph needs beside the buffers that are counted.
_LEAST_RESERVE = 256 << 20
_RESERVED_PART = 0.05
# A plan leaves room for one sequence as long as the model was trained for, or for this many of another length.
_MOST_SEQUENCES = 8
_SHORTER = 8192
# Steps in which the part of several devices that a plan fills is looked for.
_PARTS = 256


class FreeMemory(Struct, frozen=True):
    """The free memory of the host, and the devices beside it."""

    host_free: int
    devices: tuple[Device, ...] = ()


class Placement(Struct, frozen=True):
    """A plan: slots by device (the last slots of the model), and the layers of these whose experts stay on the host.

    `tokens` are the cells of all sequences together that have room, up to as many as a plan needs, and `mask_tokens`
    the cells of one sequence at most; `device_bytes` and `host_bytes` are what the plan takes with them.
    """

    slots: tuple[int, ...]
    host_experts: tuple[int, ...]
    tokens: int
    mask_tokens: int
    device_bytes: tuple[int, ...]
    host_bytes: int

    @property
    def gpu_layers(self) -> int:
        """Slots on devices."""
        return sum(self.slots)

    @property
    def alone(self) -> int | None:
        """The number of the only device that is used; None if several are, or none is."""
        used = [number for number, count in enumerate(self.slots) if count]
        return used[0] if len(used) == 1 else None


class NoRoom(Struct, frozen=True):
    """A model that has no room even for one short sequence: the free bytes, and the needed bytes.

    The difference is what the nearest plan lacks, on the host or on a device.
    """

    needed: int
    free: int


def reserve_of(device: Device) -> int:
    """Return the bytes of a device that no plan uses."""
    return max(_LEAST_RESERVE, int(device.total * _RESERVED_PART))


def plan(
    sizes: ModelSizes,
    memory: FreeMemory,
    *,
    context_tokens: int | None = None,
    sequences: int | None = None,
    slots: int | None = None,
    least_slots: int = 0,
) -> Placement | NoRoom:
    """Decide the slots of each device: as many as fit with one sequence, whole layers before experts on the host.

    The layers that stay decide how many tokens fit; more memory gives more layers, or as many and more tokens. A device
    that holds all of it, with as many tokens as a plan needs, holds it alone; several hold slots in proportion to what
    is free. `slots` fixes the number of slots, and `least_slots` bounds it; `context_tokens` fixes the least sequence,
    and with it `sequences` the tokens that are needed.
    """
    longest = whole_cells(context_tokens or sizes.trained_context)
    planner, counts = _Planner(sizes, memory, longest), _counts(sizes, slots, least_slots)
    least = longest if context_tokens else min(longest, LEAST_CONTEXT)
    most = longest * (sequences or _MOST_SEQUENCES) if context_tokens else _most_tokens(longest)
    if (alone := planner.alone(slots, most)) is not None:
        return alone
    for count, host_experts in planner.choices(counts):
        if planner.fit(count, host_experts, least) is not None:
            return planner.evened(planner.fullest(count, host_experts, least, most), host_experts)
    return planner.no_room(least, counts)


def _most_tokens(trained: int) -> int:
    """Return the tokens that a plan without a stated context needs."""
    return max(trained, _MOST_SEQUENCES * min(trained, _SHORTER))


def _counts(sizes: ModelSizes, slots: int | None, least: int) -> Sequence[int]:
    """Return the numbers of slots that devices may hold, the best first."""
    total = len(sizes.slots)
    return range(total, min(total, least) - 1, -1) if slots is None else (min(slots, total),)


class _Planner:
    """The sizes of one model against the free memory; without a stated room devices have what is free less the reserve.

    `longest` is the most tokens of one sequence.
    """

    def __init__(self, sizes: ModelSizes, memory: FreeMemory, longest: int, room: list[int] | None = None) -> None:
        self._sizes = sizes
        self._memory = memory
        self._longest = longest
        self._expert_layers = [number for number, slot in enumerate(sizes.slots) if slot.experts]
        self._room = [max(0, each.free - reserve_of(each)) for each in memory.devices] if room is None else room

    def alone(self, slots: int | None, tokens: int) -> Placement | None:
        """Return the plan on one of several devices that holds all slots, the one with most room; None without any."""
        rooms, total = self._room, len(self._sizes.slots)
        if len(rooms) < 2:
            return None
        count = total if slots is None else min(slots, total)
        widest = max(range(len(rooms)), key=lambda number: (rooms[number], -number))
        only = [room if number == widest else 0 for number, room in enumerate(rooms)]
        return _Planner(self._sizes, self._memory, self._longest, only).fit(count, 0, tokens)

    def choices(self, counts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield numbers of slots on devices with numbers of layers whose experts stay, the best first."""
        if not self._memory.devices:
            yield 0, 0
            return
        experts = len(self._expert_layers)
        yield from ((counts[0], host_experts) for host_experts in range(experts + 1))
        yield from ((count, experts) for count in counts[1:])

    def fit(self, count: int, host_experts: int, tokens: int) -> Placement | None:
        """Fill the devices in their order with the last slots; None if these or the rest do not fit."""
        filled, taken, lacking = self._filled(count, host_experts, tokens)
        used = tuple(each + self._buffers(tokens) if each else 0 for each in taken)
        host = self._on_host(count, host_experts, tokens)
        if lacking or self._over(host, used):
            return None
        mask_tokens = min(tokens, self._longest)
        return Placement(tuple(filled), tuple(self._staying(count, host_experts)), tokens, mask_tokens, used, host)

    def _filled(self, count: int, host_experts: int, tokens: int) -> tuple[list[int], list[int], int]:
        """Return the slots and their bytes by device, and the bytes for which no device has room."""
        stay = set(self._expert_layers[:host_experts])
        filled, taken, lacking, device = [0] * len(self._room), [0] * len(self._room), 0, 0
        for number in range(len(self._sizes.slots) - count, len(self._sizes.slots)):
            size = self._size(number, tokens, experts=number not in stay)
            while device < len(self._room) and taken[device] + size + self._buffers(tokens) > self._room[device]:
                device += 1
            if device == len(self._room):
                lacking += size
            else:
                filled[device] += 1
                taken[device] += size
        return filled, taken, lacking

    def _on_host(self, count: int, host_experts: int, tokens: int) -> int:
        host = self._sizes.embedding + self._buffers(tokens)
        host += sum(self._size(number, tokens) for number in range(len(self._sizes.slots) - count))
        return host + sum(self._sizes.slots[number].experts for number in self._staying(count, host_experts))

    def _staying(self, count: int, host_experts: int) -> list[int]:
        """Return the layers whose experts are on the host while the rest of the layer is on a device."""
        first = len(self._sizes.slots) - count
        return [number for number in self._expert_layers[:host_experts] if number >= first]

    def _over(self, host: int, used: Sequence[int]) -> int:
        """Return the bytes that the host lacks."""
        shared = sum(each for each, device in zip(used, self._memory.devices, strict=True) if device.shared)
        return max(0, host + shared - self._memory.host_free)

    def fullest(self, count: int, host_experts: int, least: int, most: int) -> Placement:
        """Return the plan with the most tokens, in whole cells, from the least that a plan needs to the most."""
        low, high = 0, (most - least) // CELLS
        while low < high:
            middle = (low + high + 1) // 2
            if self.fit(count, host_experts, least + middle * CELLS) is None:
                high = middle - 1
            else:
                low = middle
        found = self.fit(count, host_experts, least + low * CELLS)
        assert found is not None, "the least fits"
        return found

    def evened(self, found: Placement, host_experts: int) -> Placement:
        """Return a plan with its slots within the smallest part of each device's room that holds all slots."""
        low, high = 0, _PARTS if len(self._room) > 1 else 0
        while high - low > 1:
            middle = (low + high) // 2
            rooms = [room * middle // _PARTS for room in self._room]
            planner = _Planner(self._sizes, self._memory, self._longest, rooms)
            within = planner.fit(found.gpu_layers, host_experts, found.tokens)
            if within is None:
                low = middle
            else:
                high, found = middle, within
        return found

    def no_room(self, least: int, counts: Sequence[int]) -> NoRoom:
        """Return the figures of a refusal: by how much the nearest plan misses what is free."""
        own = sum(room for room, device in zip(self._room, self._memory.devices, strict=True) if not device.shared)
        free = self._memory.host_free + own
        missing = min(self._missing(count, host_experts, least) for count, host_experts in self.choices(counts))
        return NoRoom(free + missing, free)

    def _missing(self, count: int, host_experts: int, tokens: int) -> int:
        """Return the bytes that a plan needs beyond the last device's room, and beyond what the host has free."""
        _, taken, lacking = self._filled(count, host_experts, tokens)
        if lacking:
            taken[-1] += lacking
        used = [each + self._buffers(tokens) if each else 0 for each in taken]
        over = self._over(self._on_host(count, host_experts, tokens), used)
        if not lacking:
            return over
        last = self._memory.devices[-1]
        beyond = used[-1] + reserve_of(last) - last.free
        # Memory that it shares with the host is missing once.
        return max(beyond, over) if last.shared else beyond + over

    def _size(self, number: int, tokens: int, *, experts: bool = True) -> int:
        slot = self._sizes.slots[number]
        sequences = -(-tokens // self._longest)
        return slot.weights - (0 if experts else slot.experts) + slot.cells.of(tokens, sequences)

    def _buffers(self, tokens: int) -> int:
        return self._sizes.buffers + self._sizes.mask(min(tokens, self._longest))


def weights_of(sizes: ModelSizes, placement: Placement) -> tuple[list[int], int]:
    """Return the bytes of weights that a plan puts on each device, and on the host."""
    stay = set(placement.host_experts)
    placed = [slot.weights - (slot.experts if number in stay else 0) for number, slot in enumerate(sizes.slots)]
    first = len(placed) - placement.gpu_layers
    on_devices = []
    for count in placement.slots:
        on_devices.append(sum(placed[first : first + count]))
        first += count
    return on_devices, sizes.weights - sum(on_devices)


def device_bytes(sizes: ModelSizes, placement: Placement, sequences: int, context_tokens: int) -> list[int]:
    """Return the bytes of each device that a plan takes with sequences of a context, a batch's buffers among them."""
    weights, _ = weights_of(sizes, placement)
    first, taken = len(sizes.slots) - placement.gpu_layers, []
    for size, count in zip(weights, placement.slots, strict=True):
        cells = SequenceBytes.together(slot.cells for slot in sizes.slots[first : first + count])
        mask = sizes.mask(context_tokens) if cells.mask(1) else 0
        own = sequences * cells.of(context_tokens) + mask
        taken.append(size + own + sizes.buffers if count else 0)
        first += count
    return taken


def cells_room(sizes: ModelSizes, placement: Placement, memory: FreeMemory, host_part: float) -> int:
    """Return the bytes of all sequences for which no device is too small, after the weights were loaded.

    Sequences on the host take a part of its free memory. Each device has masks as large as the masks of all sequences.
    """
    mask = sizes.mask(placement.mask_tokens)
    first = len(sizes.slots) - placement.gpu_layers
    rooms = [(_share(sizes, slice(first)), memory.host_free * host_part)]
    for count, device in zip(placement.slots, memory.devices, strict=True):
        rooms.append((_share(sizes, slice(first, first + count)), device.free - reserve_of(device) - sizes.buffers))
        first += count
    whole = [(room - mask) / share + mask for share, room in rooms if share]
    return max(0, int(min(whole, default=memory.host_free)))


def _share(sizes: ModelSizes, chosen: slice) -> float:
    """Return the share of slots in a sequence's cells, windows or states, the largest: it holds for every length."""
    every, some = (SequenceBytes.together(slot.cells for slot in sizes.slots[each]) for each in (slice(None), chosen))
    return max(
        some.per_token / max(1, every.per_token),
        some.windowed / max(1, every.windowed),
        some.states / max(1, every.states),
    )


def usable(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices that llama.cpp uses: all with memory of their own, else the first that shares the host's."""
    own = tuple(each for each in devices if not each.shared)
    return own or tuple(devices[:1])


def devices_of(place: str, found: Sequence[Device]) -> tuple[Device, ...]:
    """Return the found devices that a replica on `gpu`, or on one GPU by its number, may use."""
    number = gpu_number(place)
    return usable(found) if number is None else usable(found)[number : number + 1]
