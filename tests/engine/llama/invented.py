"""An invented registry of devices, in place of ggml's."""

from dataclasses import dataclass, field

from car_engine.llama.devices import GgmlRegistry

GIB = 1 << 30
CPU, GPU, SHARED_GPU, ACCELERATOR = range(4)


@dataclass
class InventedDevice:
    """A device with knobs; `taken` grows as an invented load takes its memory."""

    name: str
    kind: int = GPU
    total: int = 8 * GIB
    taken: int = 0


@dataclass
class InventedRegistry(GgmlRegistry):
    """ggml's calls over invented devices; each reading of a memory is kept."""

    devices: list[InventedDevice] = field(default_factory=list)
    read: list[str] = field(default_factory=list)

    def count(self) -> int:
        return len(self.devices)

    def get(self, number: int) -> InventedDevice:
        return self.devices[number]

    def kind(self, handle: InventedDevice) -> int:
        return handle.kind

    def name(self, handle: InventedDevice) -> str:
        return handle.name

    def memory(self, handle: InventedDevice) -> tuple[int, int]:
        self.read.append(handle.name)
        return handle.total - handle.taken, handle.total
