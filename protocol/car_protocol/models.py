"""Models: the entries that the daemon can serve, their state, and the facts of a model's file."""

from typing import Annotated, Literal

from msgspec import Struct, field

from car_protocol.capacity import ModelState, Offer, Pressure
from car_protocol.conversation import ReasoningMode
from car_protocol.envelope import Id
from car_protocol.meta import Params, note

MemoryKind = Literal["attention", "windows", "hybrid", "recurrent"]


class Defaults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values for members that a request leaves out; `system` begins conversations without a system message."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: ReasoningMode | None = None
    system: Annotated[str | None, note("the first message of conversations without a system message")] = None


class Model(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model entry; sizes in bytes, times in seconds since the epoch."""

    name: str
    # Daemons of version 0.1 lack these two; a factory other than `list` has them sent also when they are empty.
    aliases: Annotated[list[str], note("further names of it")] = field(default_factory=lambda: [])
    defaults: Annotated[Defaults, note("values for members that a request leaves out")] = field(
        default_factory=Defaults
    )
    path: Annotated[str, note("of its file for administrators, the file's name for others")]
    state: ModelState
    default: bool
    pinned: Annotated[bool, note("stays loaded")]
    size_bytes: Annotated[int | None, note("of its file; null if there is none")]
    capacity: Annotated[int, note("as `inference/capacity` has it")]
    context_tokens: int | None
    adapters: Annotated[list[str], note("names for `lora`")]
    can: Annotated[
        list[str],
        note(
            "of `generate`, `chat`, `images`, `audio`, `tools` (its template shows them), `thinking`, `fill` (a "
            "`suffix` beside the prompt), `decide`, `embed`, `rerank`; of a model that is not loaded by its header"
        ),
    ]
    device: Annotated[
        str, note("`cpu`, `gpu`, `gpu0` ...; `auto` until GPUs were looked for; of several replicas joined by `+`")
    ]
    replicas: Annotated[int, note("engines, over all of its devices")]
    loaded_at: Annotated[float | None, note("seconds since the epoch")] = None
    last_used_at: Annotated[float | None, note("seconds since the epoch")] = None
    place: Annotated[str | None, note("`here`, or `ray`: its engines run on machines of a cluster")] = None
    up: Annotated[int | None, note("of `replicas`: the engines that serve now")] = None
    waiting_for: Annotated[str | None, note("what no machine of the cluster has for a further engine")] = None
    reason: Annotated[str | None, note("the reason why it failed or found no room")] = None


class Models(Struct, frozen=True):
    """Every entry, the default one first."""

    models: list[Model]


class ShowParams(Params, frozen=True, kw_only=True):
    """The model to look into."""

    model: str


class ArraySize(Struct, frozen=True):
    """The number of values of an array in a file's header, in place of the values."""

    count: int


class ModelFile(Struct, frozen=True, kw_only=True):
    """Facts of a model file's header; null if it lacks them. `metadata` has its keys unchanged."""

    architecture: str | None
    parameters: int
    file_type: Annotated[int | None, note("llama.cpp's number")]
    context_length: Annotated[int, note("tokens of context that it was trained with")]
    embedding_length: int
    block_count: int
    vocabulary: int | None
    memory: Annotated[
        MemoryKind | None,
        note(
            "what a sequence keeps of its tokens: cells of all, in some layers cells of the last tokens alone, cells "
            "and states, or states alone"
        ),
    ] = None
    unused_layers: Annotated[
        int, note("of `block_count`: layers that guess further tokens (MTP), which are in the file and not used")
    ] = 0
    parts: Annotated[int, note("files of a model that is split")]
    warnings: Annotated[
        list[str], note("parts of the header that this version does not support; an engine tries the file all the same")
    ] = []
    chat_template: Annotated[str | None, note("up to 128 KiB")]
    tool_style: Annotated[
        str | None, note("its syntax of tool calls, as configured or by its template; null if it cannot be read")
    ] = None
    thinking_tags: Annotated[list[str] | None, note("around its thoughts, as configured or by its template")] = None
    metadata: Annotated[
        dict[str, bool | int | float | str | ArraySize],
        note(
            "up to 256 keys of the header: numbers, truths and texts of up to 1,024 bytes as they are, "
            "`{count}` in place of an array"
        ),
    ]


class Estimate(Struct, frozen=True, kw_only=True):
    """Memory of each replica with sequences of `context_tokens`, and how many its part of the free memory holds.

    `sequences` is what an engine goes up to by itself, `most_sequences` the largest explicit figure; null on a
    GPU, whose memory the daemon cannot read. The memory of a loaded model counts as free for it.
    """

    weights_bytes: int
    other_bytes: Annotated[int, note("buffers, and the process")]
    context_tokens: Annotated[int, note("of a sequence")]
    kv_bytes_per_sequence: int
    free_bytes: Annotated[int, note("the memory that this model may use; its own counts as free")]
    sequences: Annotated[
        int | None, note("the number that an engine goes up to by itself, 0 if none fits; null on a GPU")
    ]
    most_sequences: Annotated[int | None, note("the largest explicit figure of this length")]
    kv_type: Annotated[str, note("the numbers in which keys and values are kept: `f16`, `q8_0` or `q4_0`")] = "f16"
    offers: Annotated[
        list[Offer], note("longer and shorter sequences that an engine goes up to by itself, the longest first")
    ] = []


class DeviceStatus(Struct, frozen=True, kw_only=True):
    """A GPU that holds a part of a model, or has no room for any; sizes in bytes, as read once the model was loaded."""

    name: Annotated[str, note("ggml's, such as `CUDA0`")]
    layers: Annotated[int, note("of the model, its output counted as one")]
    planned_bytes: Annotated[int, note("by the headers: weights, declared sequences, the buffers of a batch")]
    taken_bytes: Annotated[int, note("by the load, and by other programs meanwhile")]
    free_bytes: int
    total_bytes: int
    pressure: Annotated[Pressure, note("of its memory: engines on it run fewer requests")] = "none"


class ModelDetails(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model entry with its file, or `why` the file could not be read."""

    model: Model
    file: ModelFile | None = None
    estimate: Estimate | None = None
    devices: Annotated[
        list[DeviceStatus] | None, note("of a model that is loaded on GPUs: one for each engine and GPU")
    ] = None
    host_experts: Annotated[
        int | None, note("layers whose experts the GPUs have no room for: the most of an engine")
    ] = None
    why: Annotated[str | None, note("in place of the other two: why the file is not fit to be read")] = None


class LoadParams(Params, frozen=True, kw_only=True):
    """The model to load or to unload; with `progress` the load sends `models/progress`."""

    model: str
    progress: Annotated[bool, note("`models/progress` notifications while it is loaded")] = False


class LoadProgress(Struct, frozen=True):
    """The params of `models/progress`: bytes of the model file, loaded and in all."""

    id: Annotated[Id, note("of the request")]
    model: str
    done: Annotated[int, note("bytes of the model's file")]
    total: Annotated[int, note("bytes of the model's file")]
