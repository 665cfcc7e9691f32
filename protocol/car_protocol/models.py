"""What the daemon can serve, what is in memory, and what is known of a model's file."""

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
    device: Annotated[str, note("`cpu`, `gpu`, `gpu0` ...; those of several replicas joined by `+`")]
    replicas: Annotated[int, note("engines, over all of its devices")]
    loaded_at: Annotated[float | UnsetType, note("seconds since the epoch")] = UNSET
    last_used_at: Annotated[float | UnsetType, note("seconds since the epoch")] = UNSET
    reason: Annotated[str | UnsetType, note("why it failed, or found no room")] = UNSET


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
    file_type: Annotated[int | None, note("llama.cpp's number")]
    context_length: Annotated[int, note("what it was trained for")]
    embedding_length: int
    block_count: int
    vocabulary: int | None
    parts: Annotated[int, note("files of a model that is split")]
    chat_template: Annotated[str | None, note("up to 128 KiB")]
    metadata: Annotated[
        dict[str, bool | int | float | str | ArraySize],
        note(
            "up to 256 keys of the header: numbers, truths and texts of up to 1,024 bytes as they are, "
            "`{count}` in place of an array"
        ),
    ]


class Estimate(Struct, frozen=True, kw_only=True):
    """What each replica takes with sequences of `context_tokens`, and how many its part of the free memory holds.

    `sequences` is what an engine goes up to by itself, `most_sequences` what an explicit figure may ask for; null on a
    GPU, whose memory the daemon does not know. A model that is loaded counts as free what it has.
    """

    weights_bytes: int
    other_bytes: Annotated[int, note("buffers, and the process")]
    context_tokens: Annotated[int, note("of a sequence")]
    kv_bytes_per_sequence: int
    free_bytes: Annotated[int, note("what this model may use; what it has counts as free for it")]
    sequences: Annotated[int | None, note("how many an engine goes up to by itself, 0 where none fits; null on a GPU")]
    most_sequences: Annotated[int | None, note("how many an explicit figure may ask for")]


class ModelDetails(Struct, frozen=True, kw_only=True):
    """One model entry with its file; `why` there is none that could be looked into."""

    model: Model
    file: ModelFile | UnsetType = UNSET
    estimate: Estimate | UnsetType = UNSET
    why: Annotated[str | UnsetType, note("in place of the other two: why the file is not fit to be read")] = UNSET


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
