"""The watch of the host's memory and of that of GPUs."""

from car_daemon.host.memory import MemoryReading
from car_daemon.host.pressure import PressureLimits
from car_daemon.lifecycle.pressure_watch import PressureWatch
from car_daemon.scheduler.gate import Gate
from car_protocol.capacity import Pressure
from tests.daemon.captured_log import capture_logs


def test_a_device_that_is_short_of_memory_is_reported_once_and_leaves_the_gate_as_it_is() -> None:
    levels: dict[str, Pressure] = {"CUDA0": "none"}
    gate, changes = Gate(), []
    watch = PressureWatch(
        gate,
        PressureLimits(),
        lambda: MemoryReading(100, 100),
        lambda: changes.append(dict(levels)),
        read_devices=lambda: levels,
        clock=lambda: 0.0,
    )
    with capture_logs() as logs:
        watch.look()
        levels["CUDA0"] = "critical"
        watch.look()
        watch.look()
        levels["CUDA0"] = "none"
        watch.look()
    assert changes == [{"CUDA0": "critical"}, {"CUDA0": "none"}]
    assert [(each["event"], each["device"], each["pressure"]) for each in logs] == [
        ("device.pressure", "CUDA0", "critical"),
        ("device.pressure", "CUDA0", "none"),
    ]
    assert gate.pressure == "none"
