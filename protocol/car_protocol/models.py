"""`models/list`, `models/load` and `models/unload`: what the daemon can serve, and what is in memory."""

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from car_protocol.capacity import ModelState
from car_protocol.envelope import Id
from car_protocol.meta import Params
from car_protocol.notes import note


class Model(Struct, frozen=True, kw_only=True):
    """One model entry; sizes in bytes, times in seconds since the epoch."""

    name: str
    path: str
    state: ModelState
    default: bool
    pinned: Annotated[bool, note("stays loaded")]
    size_bytes: Annotated[int | None, note("of its file; null where there is none")]
    capacity: Annotated[int, note("as `inference/capacity` has it")]
    context_tokens: int | None
    adapters: Annotated[list[str], note("names for `lora`")]
    can: Annotated[list[str], note("of `generate`, `chat`, `images`, `embed`, `rerank`; empty until it is loaded")]
    device: str
    replicas: int
    loaded_at: Annotated[float | UnsetType, note("seconds since the epoch")] = UNSET
    last_used_at: Annotated[float | UnsetType, note("seconds since the epoch")] = UNSET
    reason: Annotated[str | UnsetType, note("why it failed, or found no room")] = UNSET


class Models(Struct, frozen=True):
    """Every entry, the default one first."""

    models: list[Model]


class LoadParams(Params, frozen=True, kw_only=True):
    """Which model to load or to unload; `progress` asks for `models/progress` while it is loaded."""

    model: str
    progress: Annotated[bool, note("`models/progress` notifications while it is loaded")] = False


class LoadProgress(Struct, frozen=True):
    """The params of `models/progress`: bytes of the model file, loaded and in all."""

    id: Annotated[Id, note("of the request")]
    model: str
    done: Annotated[int, note("bytes of the model's file")]
    total: Annotated[int, note("bytes of the model's file")]
