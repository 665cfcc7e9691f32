"""What daemon and engine tell each other."""

from typing import Any, Literal

from msgspec import Struct

from car_daemon.engine.batching.adapter_turns import AdapterSet
from car_daemon.engine.output.format import Tags, ToolStyle
from car_protocol.answer import FinishReason, Logprob, Usage
from car_protocol.capacity import Policy
from car_protocol.conversation import Message, ReasoningMode, Tool, ToolCall, ToolChoice
from car_protocol.sampling import Sampling


class Load(Struct, frozen=True, tag=True, kw_only=True):
    """First frame to an engine: the model, how to decide capacity, where cost curves are kept.

    `budget_bytes` is the most that it may take for free memory; `packed` lets weights be packed anew for the cores.
    """

    path: str
    context_tokens: int | None
    sequences: int | None
    policy: Policy
    max_itl_ms: int
    reserve_bytes: int
    saved_bytes: int
    step_target_ms: int
    curves: str | None
    threads: int | None
    gpu_layers: int
    packed: bool = True
    device: str = "cpu"
    adapters: dict[str, str] = {}
    projector: str | None = None
    chat_template: str | None = None
    speculative: bool = False
    budget_bytes: int | None = None


class Chat(Struct, frozen=True, kw_only=True):
    """What a chat template is given; `tools` is empty where none may be called."""

    messages: list[Message]
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    template_args: dict[str, Any] = {}
    reasoning: ReasoningMode = "auto"


class Prepare(Struct, frozen=True, tag=True, kw_only=True):
    """Turn a prompt into tokens, compile its grammar and check that all of it fits the model."""

    key: int
    prompt: str | None
    tokens: list[int] | None
    chat: Chat | None
    parse_special: bool
    max_tokens: int | None
    sampling: Sampling
    grammar: str | None
    json_schema: dict[str, Any] | None
    adapters: AdapterSet = ()


class PrepareTexts(Struct, frozen=True, tag=True):
    """Cut texts into tokens to embed them, or with a query to rank them."""

    key: int
    texts: list[str]
    query: str | None


class ImageSlot(Struct, frozen=True, array_like=True):
    """An image in a prompt: its first position, how many it takes, and its file."""

    start: int
    count: int
    data: bytes


class Reading(Struct, frozen=True, array_like=True):
    """How an answer is read: tags of thoughts, whether it starts in one, calls, tokens to show, thoughts kept."""

    thinking: Tags | None = None
    inside: bool = False
    tools: ToolStyle | None = None
    markers: tuple[str, ...] = ()
    keep: bool = False


class Run(Struct, frozen=True, tag=True, kw_only=True):
    """Run a prepared request that holds a lease; without a namespace it neither uses nor leaves cached cells."""

    key: int
    tokens: bytes
    max_tokens: int
    sampling: Sampling
    seed: int
    stop: list[str]
    return_tokens: bool
    logprobs: int | None = None
    constraint: str = ""
    reading: Reading = Reading()
    namespace: str | None = None
    adapters: AdapterSet = ()
    images: list[ImageSlot] = []


class RunTexts(Struct, frozen=True, tag=True):
    """Embed or rank prepared texts; `tokens` are int32 values of all of them, `lengths` how many of each."""

    key: int
    tokens: bytes
    lengths: list[int]
    normalize: bool


class Park(Struct, frozen=True, tag=True):
    """Set a running request aside at the next step boundary and free its sequence."""

    key: int


class Resume(Struct, frozen=True, tag=True):
    """Go on with a parked request, which holds a lease again."""

    key: int


class Halt(Struct, frozen=True, tag=True):
    """End a running or parked request at the next step boundary: cancelled, or at its deadline with what it has."""

    key: int
    deadline: bool


class Forget(Struct, frozen=True, tag=True):
    """Do not prepare a request any more: nobody waits for it. Nothing is answered."""

    key: int


class Share(Struct, frozen=True, tag=True):
    """Compute with so many threads from the next step on: the rest of the cores is for other engines."""

    threads: int


class Tokenize(Struct, frozen=True, tag=True):
    """Cut text into tokens."""

    key: int
    text: str
    add_special: bool
    parse_special: bool


class Detokenize(Struct, frozen=True, tag=True):
    """Write tokens out as text."""

    key: int
    tokens: list[int]
    special: bool


class Quit(Struct, frozen=True, tag=True):
    """End the process; running work is dropped."""


class Loading(Struct, frozen=True, tag=True):
    """The share of the weights that is loaded, 0 to 1."""

    done: float


class Ready(Struct, frozen=True, tag=True, kw_only=True):
    """A first decode succeeded: what this engine declares, and facts about its model."""

    sequences: int
    policy: Policy
    context_tokens: int
    kv_bytes: int
    device: str
    threads: int = 1
    can: list[str]
    inputs: dict[str, float]


class LoadFailed(Struct, frozen=True, tag=True):
    """The model cannot be served; `reason` is a fixed text."""

    reason: str


class Prepared(Struct, frozen=True, tag=True):
    """A request that can run: int32 tokens, the grammar that binds it (empty: none), how to read it, texts' lengths."""

    key: int
    tokens: bytes
    max_tokens: int
    constraint: str = ""
    reading: Reading = Reading()
    lengths: list[int] = []
    images: list[ImageSlot] = []


class Refused(Struct, frozen=True, tag=True):
    """A request that cannot run; reason and data as in the error table, and for the log what the engine failed with."""

    key: int
    reason: str
    data: dict[str, Any]
    fault: str | None = None


class TokenIds(Struct, frozen=True, tag=True):
    """The answer to Tokenize."""

    key: int
    tokens: list[int]


class PlainText(Struct, frozen=True, tag=True):
    """The answer to Detokenize."""

    key: int
    text: str


# What a request was ended for: the first four are the engine's own failures, the others lie in the request.
Fault = Literal["decode", "embedder", "projector", "lease", "constraint", "image"]


class End(Struct, frozen=True, array_like=True):
    """How a request ended; `reason` None means cancelled, or that of `fault` went wrong under it."""

    reason: FinishReason | None
    stop: str | None
    usage: Usage
    prefill_ms: float
    decode_ms: float
    fault: Fault | None = None


class Extra(Struct, frozen=True, array_like=True):
    """What a step brought beside text, to the few requests that get more than text."""

    tokens: list[int] = []
    logprobs: list[Logprob] = []
    reasoning: str = ""
    tool_calls: list[ToolCall] = []
    vectors: list[list[float]] = []


class Row(Struct, frozen=True, array_like=True):
    """What one step brought one request: text, tokens sampled, prompt tokens done, those of them that were cached."""

    key: int
    sequence: int
    text: str
    sampled: int
    prompt_done: int
    extra: Extra | None = None
    end: End | None = None
    cached: int = 0


class Parked(Struct, frozen=True, tag=True):
    """A request was set aside; its sequence is free."""

    key: int


class StepDone(Struct, frozen=True, tag=True):
    """All rows of one step."""

    step: int
    rows: list[Row]


class Heartbeat(Struct, frozen=True, tag=True):
    """Sent every second: the loop's step number and the age of the running step in milliseconds."""

    step: int
    step_age_ms: float
    counters: dict[str, float]


class Warned(Struct, frozen=True, tag=True):
    """Something for the daemon's log: a fixed event name and facts."""

    event: str
    facts: dict[str, Any]


Work = Prepare | PrepareTexts | Tokenize | Detokenize | Forget | Run | RunTexts | Park | Resume | Halt
ToEngine = Load | Share | Work | Quit
About = Prepared | Refused | TokenIds | PlainText | StepDone | Parked
FromEngine = Loading | Ready | LoadFailed | Heartbeat | Warned | About
