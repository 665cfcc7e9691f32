"""`models/list`: what the daemon can serve."""

from msgspec import UNSET, Struct, UnsetType

from car_protocol.capacity import ModelState


class Model(Struct, frozen=True, kw_only=True):
    """One model entry; sizes in bytes, times in seconds since the epoch."""

    name: str
    path: str
    state: ModelState
    default: bool
    pinned: bool
    size_bytes: int | None
    capacity: int
    context_tokens: int | None
    adapters: list[str]
    can: list[str]
    device: str
    replicas: int
    loaded_at: float | UnsetType = UNSET
    last_used_at: float | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Models(Struct, frozen=True):
    """Every entry, the default one first."""

    models: list[Model]
