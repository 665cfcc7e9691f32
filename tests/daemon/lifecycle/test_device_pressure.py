"""The pressure on GPUs, by what their engines report as free."""

from pathlib import Path

import pytest
from msgspec import structs

from car_base.host.memory import PressureLimits
from car_base.ipc.frames import DeviceMemory, DeviceUse
from car_daemon.lifecycle.pressure_watch import DevicePressure
from car_daemon.models.entry import ModelEntry
from car_daemon.models.settings import ModelSettings
from car_protocol.capacity import Pressure
from tests.daemon.captured_log import capture_logs
from tests.daemon.links import ready_of

GIB, MIB = 1 << 30, 1 << 20


def entry(*devices: DeviceMemory, unused: str = "", engine: int = 1, host: str | None = None) -> ModelEntry:
    """Return a model on these devices; it has a plan for the unused one, and nothing there."""
    one = ModelEntry("m", ModelSettings(Path("m")), default=False, on_change=lambda _: None)
    (replica,) = one.replicas
    uses = [DeviceUse(each.name, int(each.name != unused), 1, 1, each.free, each.total) for each in devices]
    replica.become("ready", ready=structs.replace(ready_of(), devices=uses))
    replica.launched(engine, 1, host)
    replica.devices = list(devices)
    return one


def gpu(free_mib: int, name: str = "CUDA0", *, shared: bool = False) -> DeviceMemory:
    return DeviceMemory(name, free_mib * MIB, 20 * GIB, shared)


class World:
    """Models whose GPUs are looked at, and the time."""

    def __init__(self, *entries: ModelEntry) -> None:
        self.now = 0.0
        self.pressure = DevicePressure(entries, PressureLimits(calm_s=10), lambda: self.now)


# 5% of 20 GiB, 1,024 MiB, are no plan's.
@pytest.mark.parametrize(
    ("free_mib", "level"),
    [(1100, "none"), (256, "none"), (255, "some"), (64, "some"), (63, "critical"), (0, "critical")],
)
def test_a_device_is_short_of_memory_once_a_quarter_of_its_reserve_is_left(free_mib: int, level: Pressure) -> None:
    short, shared = entry(gpu(free_mib)), entry(gpu(free_mib, "Metal", shared=True), engine=2)
    assert World(short, shared).pressure.look() == (level != "none")
    assert (short.device_pressure, shared.device_pressure) == (level, "none")


def test_a_level_rises_at_once_and_falls_after_ten_calm_seconds() -> None:
    one = entry(gpu(1000))
    world = World(one)
    seen = []
    with capture_logs() as logs:
        for now, free_mib in ((0, 1000), (1, 100), (2, 10), (3, 1000), (12, 1000), (13, 1000), (14, 1000)):
            world.now = now
            one.replicas[0].devices = [gpu(free_mib)]
            world.pressure.look()
            seen.append(one.device_pressure)
    assert seen == ["none", "some", "critical", "critical", "critical", "none", "none"]
    assert [(each["event"], each["device"], each["pressure"], each["free_mib"]) for each in logs] == [
        ("device.pressure", "CUDA0", "some", 100),
        ("device.pressure", "CUDA0", "critical", 10),
        ("device.pressure", "CUDA0", "none", 1000),
    ]


def test_an_engine_is_under_the_highest_pressure_of_the_devices_that_hold_a_part_of_its_model() -> None:
    both = entry(gpu(900), gpu(10, "CUDA1"))
    first = entry(gpu(900), gpu(10, "CUDA1"), unused="CUDA1", engine=2)
    world = World(both, first)
    world.pressure.look()
    assert world.pressure.by_engine() == {1: "critical", 2: "none"}
    assert both.replicas[0].pressures == {"CUDA0": "none", "CUDA1": "critical"}


def test_of_several_readings_of_a_device_the_lowest_counts_for_all_its_engines() -> None:
    world = World(entry(gpu(900)), entry(gpu(10), engine=2))
    world.pressure.look()
    assert world.pressure.by_engine() == {1: "critical", 2: "critical"}


def test_the_gpus_of_other_machines_are_none_of_this_one() -> None:
    away = entry(gpu(0), engine=2, host="n1")
    world = World(entry(gpu(900)), away)
    assert not world.pressure.look()
    assert (world.pressure.by_engine(), away.device_pressure) == ({1: "none"}, "none")


def test_a_device_without_engines_is_forgotten_with_its_level() -> None:
    one = entry(gpu(0))
    world = World(one)
    world.pressure.look()
    ready = one.replicas[0].ready
    one.replicas[0].lost()
    one.replicas[0].retire()
    assert not world.pressure.look()
    assert (world.pressure.by_engine(), one.device_pressure) == ({}, "none")
    one.replicas[0].become("ready", ready=ready)
    one.replicas[0].launched(3, 1)
    one.replicas[0].devices = [gpu(900)]
    world.pressure.look()
    assert world.pressure.by_engine() == {3: "none"}


def test_limits_of_a_reload_hold_for_devices_too() -> None:
    one = entry(gpu(0))
    world = World(one)
    world.pressure.look()
    world.pressure.limit(PressureLimits(calm_s=0))
    one.replicas[0].devices = [gpu(900)]
    world.pressure.look()
    assert one.device_pressure == "none"
