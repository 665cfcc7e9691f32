"""The watch of the host's memory and of that of GPUs."""

from car_base.host.memory import MemoryReading, PressureLimits
from car_daemon.lifecycle.pressure_watch import DevicePressure, PressureWatch
from car_daemon.models.entry import ModelEntry
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer
from tests.daemon.lifecycle.test_device_pressure import entry, gpu


class World:
    """Two engines at a gate, on a GPU each; the host has memory."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.gate.declare(1, EngineOffer("m", 8, "gpu0"))
        self.gate.declare(2, EngineOffer("other", 8, "gpu1"))
        self.entries = [entry(gpu(900)), entry(gpu(900, "CUDA1"), engine=2)]
        self.changes = 0
        limits = PressureLimits(calm_s=0)
        self.watch = PressureWatch(
            self.gate,
            limits,
            lambda: MemoryReading(100, 100),
            self.change,
            devices=DevicePressure(self.entries, limits, lambda: 0.0),
            clock=lambda: 0.0,
        )

    def change(self) -> None:
        self.changes += 1

    def capacities(self, *free_mib: int) -> list[int]:
        """Have the GPUs report what is free; return the capacities after a look."""
        for number, (each, free) in enumerate(zip(self.entries, free_mib, strict=True)):
            self.reading(each, number, free)
        self.watch.look()
        return [self.gate.capacity(model) for model in ("m", "other")]

    def reading(self, one: ModelEntry, number: int, free_mib: int) -> None:
        one.replicas[0].devices = [gpu(free_mib, f"CUDA{number}")]


def test_the_engines_of_a_gpu_that_is_short_of_memory_run_fewer_requests_until_it_recovers() -> None:
    world = World()
    assert world.capacities(900, 900) == [8, 8]
    assert (world.capacities(200, 900), world.changes) == ([6, 8], 1)
    assert (world.capacities(10, 900), world.changes) == ([4, 8], 2)
    assert (world.capacities(10, 900), world.changes) == ([4, 8], 2)
    assert (world.capacities(900, 10), world.changes) == ([8, 4], 3)
    assert world.gate.pressure == "none"


def test_an_engine_that_becomes_ready_on_a_gpu_that_is_short_of_memory_is_limited_at_the_next_look() -> None:
    world = World()
    world.capacities(10, 900)
    world.gate.withdraw(1)
    world.gate.declare(3, EngineOffer("m", 8, "gpu0"))
    world.entries[0].replicas[0].launched(3, 1)
    assert (world.capacities(10, 900), world.changes) == ([4, 8], 2)
