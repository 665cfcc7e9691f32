"""`inference/capacity`: how many requests run at once, and what decided it."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from car_protocol.limits import Limits
from car_protocol.meta import Params

Policy = Literal["env", "flag", "config", "measured", "memory", "ram_tiers", "ram_per_8gb"]
Pressure = Literal["none", "some", "critical"]
ModelState = Literal["unloaded", "loading", "ready", "draining", "failed"]


class CapacityParams(Params, frozen=True, kw_only=True):
    """Which model's capacity; `subscribe` starts or ends `inference/capacity_changed`."""

    model: str | None = None
    subscribe: bool | None = None


class Machine(Struct, frozen=True):
    """The limit over all models, None where there is none, and the sequences leased under it."""

    limit: int | None
    in_use: int


class Capacity(Struct, frozen=True, kw_only=True):
    """The capacity object; counts are sequences or requests, `inputs` are the figures that the policy decided by."""

    capacity: int
    declared: int | None
    in_use: int
    available: int
    parked: int
    queued: int
    queue_limit: int
    policy: Policy | None
    pressure: Pressure
    state: ModelState
    model: str
    context_tokens: int | None
    machine: Machine
    generation: int
    protocol: str
    version: str
    limits: Limits
    reason: str | UnsetType = UNSET
    inputs: dict[str, float] | UnsetType = UNSET
