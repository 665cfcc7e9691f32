"""`models/list`, `models/load` and `models/unload`: what the daemon can serve, and what is in memory."""

from msgspec import UNSET, Struct, UnsetType

from car_protocol.capacity import ModelState
from car_protocol.envelope import Id
from car_protocol.meta import Params


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


class LoadParams(Params, frozen=True, kw_only=True):
    """Which model to load or to unload; `progress` asks for `models/progress` while it is loaded."""

    model: str
    progress: bool = False


class LoadProgress(Struct, frozen=True):
    """The params of `models/progress`: bytes of the model file, loaded and in all."""

    id: Id
    model: str
    done: int
    total: int
