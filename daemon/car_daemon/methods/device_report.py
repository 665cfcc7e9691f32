"""The GPUs that hold a part of a model: what a load planned and took of each, and what is free now."""

from collections.abc import Iterable

from car_daemon.ipc.frames import DeviceUse
from car_daemon.models.replica import Replica
from car_protocol.models import DeviceStatus


def devices_of(replica: Replica) -> list[DeviceStatus]:
    """Return the devices that hold a part of a replica; all that it may use, where none has room for any."""
    if replica.ready is None:
        return []
    uses = replica.ready.devices
    return [_device(use, replica) for use in [each for each in uses if each.slots] or uses]


def host_experts_of(replicas: Iterable[Replica]) -> int:
    """Return the most layers of a replica whose experts are on the host."""
    return max((each.ready.host_experts for each in replicas if each.ready is not None), default=0)


def _device(use: DeviceUse, replica: Replica) -> DeviceStatus:
    return DeviceStatus(
        name=use.name,
        layers=use.slots,
        planned_bytes=use.planned,
        taken_bytes=use.taken,
        free_bytes=next((each.free for each in replica.devices if each.name == use.name), use.free),
        total_bytes=use.total,
        pressure=replica.pressures.get(use.name, "none"),
    )
