"""What the daemon can serve, what is in memory, and what is known of a model's file."""

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


class ShowParams(Params, frozen=True, kw_only=True):
    """Which model to look into."""

    model: str


class ArraySize(Struct, frozen=True):
    """How many values an array in a file's header has, in place of them."""

    count: int


class ModelFile(Struct, frozen=True, kw_only=True):
    """What the header of a model file says; null where it says nothing. `metadata` has its keys as they are."""

    architecture: str | None
    parameters: int
    file_type: int | None
    context_length: int
    embedding_length: int
    block_count: int
    vocabulary: int | None
    parts: int
    chat_template: str | None
    metadata: dict[str, bool | int | float | str | ArraySize]


class Estimate(Struct, frozen=True, kw_only=True):
    """What a model takes with sequences of `context_tokens`, and how many the free memory holds beside its weights.

    `sequences` is what an engine goes up to by itself, `most_sequences` what an explicit figure may ask for; null on a
    GPU, whose memory the daemon does not know. A model that is loaded counts as free what it has.
    """

    weights_bytes: int
    other_bytes: int
    context_tokens: int
    kv_bytes_per_sequence: int
    free_bytes: int
    sequences: int | None
    most_sequences: int | None


class ModelDetails(Struct, frozen=True, kw_only=True):
    """One model entry with its file; `why` there is none that could be looked into."""

    model: Model
    file: ModelFile | UnsetType = UNSET
    estimate: Estimate | UnsetType = UNSET
    why: str | UnsetType = UNSET


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
