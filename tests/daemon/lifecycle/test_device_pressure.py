"""The pressure on GPUs, by what their engines report as free."""

from pathlib import Path

import pytest
from msgspec import structs

from car_daemon.ipc.frames import DeviceMemory, DeviceUse
from car_daemon.lifecycle.device_pressure import pressure_by_device, pressure_of, pressure_on, worse
from car_daemon.models.entry import ModelEntry
from car_daemon.models.settings import ModelSettings
from car_protocol.capacity import Pressure
from tests.daemon.links import ready_of

GIB, MIB = 1 << 30, 1 << 20


def entry(*devices: DeviceMemory) -> ModelEntry:
    one = ModelEntry("m", ModelSettings(Path("m")), default=False, on_change=lambda _: None)
    one.replicas[0].devices = list(devices)
    return one


def gpu(free_mib: int, name: str = "CUDA0", *, shared: bool = False) -> DeviceMemory:
    return DeviceMemory(name, free_mib * MIB, 20 * GIB, shared)


# 5% of 20 GiB, 1,024 MiB, are no plan's.
@pytest.mark.parametrize(
    ("free_mib", "level"),
    [(1100, "none"), (256, "none"), (255, "some"), (64, "some"), (63, "critical"), (0, "critical")],
)
def test_a_device_is_short_of_memory_once_a_quarter_of_its_reserve_is_left(free_mib: int, level: Pressure) -> None:
    assert pressure_of(gpu(free_mib)) == level
    assert pressure_of(gpu(free_mib, shared=True)) == "none"


def test_a_model_is_under_the_highest_pressure_of_its_devices_alone_whichever_engine_read_it() -> None:
    levels: dict[str, Pressure] = {"CUDA0": "none", "CUDA1": "some"}
    one, other, on_cpu = entry(), entry(), entry()
    for each, names in ((one, ["CUDA0", "CUDA1"]), (other, ["CUDA0"]), (on_cpu, [])):
        uses = [DeviceUse(name, slots=1, planned=1, taken=1, free=1, total=2) for name in names]
        each.replicas[0].become("ready", ready=structs.replace(ready_of(), devices=uses))
    assert [pressure_on(each, levels) for each in (one, other, on_cpu)] == ["some", "none", "none"]


def test_of_several_readings_of_a_device_the_lowest_counts() -> None:
    assert pressure_by_device([entry(gpu(900)), entry(gpu(10), gpu(900, "CUDA1"))]) == {
        "CUDA0": "critical",
        "CUDA1": "none",
    }


def test_the_higher_level_of_host_and_device_counts() -> None:
    assert (worse("none", "some"), worse("critical", "some"), worse("none", "none")) == ("some", "critical", "none")
