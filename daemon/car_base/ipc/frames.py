"""Frames between the daemon and an engine; the ranges of what an engine may send are part of their types."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from car_base.ipc.engine_settings import EngineSettings
from car_base.ipc.model_sizes import ModelSizes
from car_base.ipc.ranges import (
    MAX_SEQUENCES,
    MAX_UPDATES,
    ContextTokens,
    Count,
    Counters,
    Event,
    Facts,
    Fraction,
    Inputs,
    Key,
    Line,
    Measure,
    Name,
    Rate,
    SequenceNumber,
    Sequences,
    Threads,
    TokenCount,
)
from car_base.ipc.types import ParameterKind, Tags, ToolStyle
from car_protocol.answer import FinishReason, Logprob, Usage
from car_protocol.capacity import Policy
from car_protocol.conversation import Invalid, Message, ReasoningMode, Tool, ToolChoice
from car_protocol.decide import MAX_OPTIONS, MAX_QUESTIONS, DecisionPrompt
from car_protocol.infer import GenerationOptions, PromptParams
from car_protocol.limits import MAX_IMAGES, MAX_VALUES
from car_protocol.meta import MAX_LABEL_BYTES
from car_protocol.text import MAX_TEXTS, TokenizeParams


class DeviceMemory(Struct, frozen=True, array_like=True):
    """The memory of a GPU in bytes; a `shared` one uses the host's."""

    name: Name
    free: Count
    total: Count
    shared: bool = False


class DeviceUse(Struct, frozen=True, array_like=True):
    """A device that a model is on: its slots (layers, and the output), the bytes planned and taken, and its memory."""

    name: Name
    slots: Count
    planned: Count
    taken: Count
    free: Count
    total: Count


# The GPUs of a machine: llama.cpp itself takes at most 16.
_MOST_DEVICES = 64
_Items = Meta(max_length=MAX_VALUES)
_One = Meta(max_length=1)


class FindDevices(Struct, frozen=True, tag=True):
    """Report the GPUs; in place of a load."""


class Load(EngineSettings, frozen=True, tag=True, kw_only=True):
    """First frame to an engine: the model, its settings, the place of its cost curves.

    `budget_bytes` bounds the memory that counts as free; `packed` lets weights be repacked for the cores. Cells are
    stored in the folder `cells`, in files of at most `cells_bytes` in all; None for no files.
    """

    path: str
    curves: str | None
    gpu_layers: int
    packed: bool = True
    device: str = "cpu"
    stated: bool = False  # by the configuration: no load on a GPU leaves all of its layers on the host
    sizes: ModelSizes | None = None  # for the plan of a model on GPUs
    sharing: int = 1  # replicas that plan with the same devices, each with as large a part of them
    adapters: dict[str, str] = field(default_factory=dict)
    projector: str | None = None
    chat_template: str | None = None
    budget_bytes: int | None = None
    cells: str | None = None
    cells_bytes: int = 0


class Chat(Struct, frozen=True, kw_only=True):
    """Input of a chat template; `tools` is empty if calls are not allowed.

    With `continue_last` the prompt ends where the text of the last message does.
    """

    messages: list[Message]
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    parallel: bool = True  # more than one call an answer
    template_args: dict[str, Any] = {}
    reasoning: ReasoningMode = "auto"
    continue_last: bool = False


def chat_of(params: PromptParams | TokenizeParams) -> Chat | None:
    """Return the conversation of params; None if they have a text or tokens."""
    if params.messages is None:
        return None
    choice: ToolChoice = params.tool_choice if isinstance(params, PromptParams) else "auto"
    return Chat(
        messages=params.messages,
        tools=params.tools if choice != "none" else [],
        tool_choice=choice,
        parallel=params.parallel_tool_calls,
        template_args=params.template_args,
        reasoning=params.reasoning or "auto",
        continue_last=params.continue_last,
    )


_Name = Annotated[str, Meta(max_length=MAX_LABEL_BYTES)]
# A process of an owner, a tenant of the process and a label of the tenant: they take turns.
Names = tuple[_Name, _Name, _Name]
NAMELESS: Names = ("", "", "")


class Prepare(Struct, frozen=True, tag=True):
    """Turn a prompt into tokens, compile its grammar and check that all of it fits the model.

    Nothing that is built for `owner`, the client's uid, is used for another: saved time would tell one user of another.
    """

    key: int
    owner: int
    params: PromptParams
    namespace: str | None = None  # as in Run
    names: Names = NAMELESS

    @property
    def chat(self) -> Chat | None:
        """The conversation; None if the prompt is a text or tokens."""
        return chat_of(self.params)


class PrepareDecision(Struct, frozen=True, tag=True):
    """Turn questions about a state into tokens; `temperatures` by type win over the model's file."""

    key: int
    owner: int  # as in Prepare
    params: DecisionPrompt
    namespace: str | None
    temperatures: dict[str, float] = {}
    names: Names = NAMELESS


class PrepareTexts(Struct, frozen=True, tag=True):
    """Tokenize texts to embed, or with a query to rank."""

    key: int
    texts: list[str]
    query: str | None
    owner: int = 0  # as in Prepare
    truncate: bool = False  # texts to embed that are too long
    names: Names = NAMELESS


class ImageSlot(Struct, frozen=True, array_like=True):
    """An image or a sound in a prompt: its first position, its number of positions, and its file."""

    start: TokenCount
    count: TokenCount
    data: bytes
    audio: bool = False


class Reading(Struct, frozen=True, array_like=True):
    """The syntax of a model's answers.

    Tags of reasoning, whether the answer starts inside it, the style of tool calls, control tokens to write out,
    whether reasoning stays in the text, the tools with the kinds of their parameters (None: calls are text), the part
    of a message's header that the prompt ends with, whether the answer ends with its first call, and by the tools'
    names the JSON texts of the schemas by which an answer without tags is a call (none: it is text).
    """

    thinking: Tags | None = None
    inside: bool = False
    tools: ToolStyle | None = None
    markers: tuple[str, ...] = ()
    keep: bool = False
    functions: dict[str, dict[str, ParameterKind]] | None = None
    begun: str = ""
    one_call: bool = False
    schemas: dict[str, str] = {}


class Tail(Struct, frozen=True, array_like=True):
    """The tokens of a question after the prefix of all, and how many labels are read after the last token."""

    length: TokenCount
    labels: Annotated[int, Meta(ge=2, le=MAX_OPTIONS)]


class QuestionForm(Struct, frozen=True, array_like=True):
    """How the readings of a question become its answer.

    It has one reading or two, the second in reverse order; `ratings` and `reverse` are of predicates: they are read as
    ratings whose mean counts, or with the side that is not so first.
    """

    readings: Annotated[int, Meta(ge=1, le=2)]
    temperature: Annotated[float, Meta(ge=1e-3, le=1e3)]
    ratings: bool = False
    reverse: bool = False


class DecisionForm(Struct, frozen=True, array_like=True):
    """A decision in tokens: a prefix, then tails, one for each reading of the questions in their order."""

    prefix: TokenCount
    tails: Annotated[list[Tail], Meta(min_length=1, max_length=2 * MAX_QUESTIONS)]
    questions: Annotated[list[QuestionForm], Meta(min_length=1, max_length=MAX_QUESTIONS)]


class Prepared(Struct, frozen=True, tag=True):
    """A request that can run: int32 tokens, its grammar (empty: none), how to read its answer, the texts' lengths.

    `Run` and `RunTexts` carry it back unchanged.
    """

    key: Key
    tokens: bytes
    max_tokens: TokenCount
    constraint: str = ""
    reading: bytes = b""  # a packed Reading, which engines alone read
    lengths: Annotated[list[TokenCount], Meta(max_length=MAX_TEXTS)] = []
    images: Annotated[list[ImageSlot], Meta(max_length=MAX_IMAGES)] = []
    owner: int = 0  # as in Prepare
    names: Names = NAMELESS
    ignored: Annotated[list[str], _Items] = []  # places of a schema's keywords that its grammar leaves out
    decision: DecisionForm | None = None
    open_ended: bool = False  # `max_tokens` is what the longest context leaves, not a figure of the request
    # The number of last tokens that later prompts of the chat lack, then the numbers that other chats lack.
    own: Annotated[tuple[TokenCount, ...], Meta(min_length=1, max_length=3)] = (1,)
    parts: bytes = b""  # of a conversation: digests of its tools, then of each message


class Run(Struct, frozen=True, tag=True):
    """Run a prepared request, which has a lease; without a namespace it neither uses nor leaves cached cells."""

    prepared: Prepared
    options: GenerationOptions
    namespace: str | None = None

    @property
    def key(self) -> int:
        """The request's key."""
        return self.prepared.key


class RunTexts(Struct, frozen=True, tag=True):
    """Embed or rank prepared texts, which have a lease."""

    prepared: Prepared
    normalize: bool

    @property
    def key(self) -> int:
        """The request's key."""
        return self.prepared.key


class Park(Struct, frozen=True, tag=True):
    """Park a running request at the next step boundary and free its sequence."""

    key: int


class Resume(Struct, frozen=True, tag=True):
    """Resume a parked request, which has a lease again."""

    key: int


class Halt(Struct, frozen=True, tag=True):
    """End a running or parked request at the next step boundary: cancelled, or at its deadline with its text so far."""

    key: int
    deadline: bool


class Yield(Struct, frozen=True, tag=True):
    """Read the prompts of these requests only while no answer is written; all others are read as usual."""

    keys: list[int]


class Forget(Struct, frozen=True, tag=True):
    """Skip or drop the preparation of a request that was cancelled, or runs in another engine; has no reply."""

    key: int


class SetThreads(Struct, frozen=True, tag=True):
    """Compute with this number of threads from the next step on; the other cores are for other engines."""

    threads: int


class SpareMemory(Struct, frozen=True, tag=True):
    """Free the cells and states in host memory that no parked request needs, and keep none until memory is at hand."""

    spare: bool


class Tokenize(Struct, frozen=True, tag=True):
    """Cut a text, or the prompt of a chat, into tokens; the reply to `count_only` is Counted."""

    key: int
    text: str | None
    add_special: bool
    parse_special: bool
    chat: Chat | None = None
    count_only: bool = False
    owner: int = 0  # as in Prepare
    names: Names = NAMELESS


class Detokenize(Struct, frozen=True, tag=True):
    """Write tokens out as text."""

    key: int
    tokens: list[int]
    special: bool
    owner: int = 0  # as in Prepare
    names: Names = NAMELESS


class Quit(Struct, frozen=True, tag=True):
    """End the process; running work is dropped."""


class Loading(Struct, frozen=True, tag=True):
    """Progress of a load: the fraction of the weights that is loaded, 0 to 1."""

    done: Fraction


class Ready(Struct, frozen=True, tag=True, kw_only=True):
    """A first decode succeeded: the engine's declared capacity, facts about its model, and how it is confined."""

    sequences: Sequences
    policy: Policy
    context_tokens: ContextTokens
    kv_bytes: Count
    mask_bytes: Count = 0  # the attention mask of a batch
    device: Name
    threads: Threads = 1
    fingerprint: Name = ""  # of what its answers depend on, beside the request
    # Tokens per second with 1, 2, ... sequences; empty if no costs were measured.
    rates: Annotated[list[Rate], Meta(max_length=MAX_SEQUENCES)] = []
    prompt_share: Fraction = 1.0  # the cost of a prompt token in answer tokens
    can: Annotated[list[Name], Meta(max_length=64)]
    inputs: Inputs
    sandbox: Annotated[list[Name], Meta(max_length=64)] = []
    memory_limits: tuple[Count, Count] | None = None  # bytes, of private and of virtual memory
    devices: Annotated[list[DeviceUse], Meta(max_length=_MOST_DEVICES)] = []
    host_experts: Count = 0  # layers whose experts stay on the host
    host_weights: Count = 0  # bytes that a plan on GPUs leaves on the host


class Devices(Struct, frozen=True, tag=True):
    """Reply to FindDevices: the GPUs that llama.cpp finds, with their memory."""

    found: Annotated[list[DeviceMemory], Meta(max_length=_MOST_DEVICES)]


class LoadFailed(Struct, frozen=True, tag=True):
    """The model cannot be served; `reason` has no text of a request."""

    reason: Line


class Refused(Struct, frozen=True, tag=True):
    """A request that cannot run: reason and data as in the error table; `fault` is the engine's own error, logged."""

    key: Key
    reason: str
    data: dict[str, Any]
    fault: Line | None = None


class TokenIds(Struct, frozen=True, tag=True):
    """Reply to Tokenize: int32 tokens, so that any number of tokens decodes at once."""

    key: Key
    tokens: bytes


class TokensCounted(Struct, frozen=True, tag=True):
    """Reply to Tokenize with `count_only`."""

    key: Key
    count: TokenCount


class PlainText(Struct, frozen=True, tag=True):
    """Reply to Detokenize."""

    key: Key
    text: str


# Causes of a failed request: the first four are failures of the engine, the others lie in the request. A reproducible
# one fails in an engine that computes other results than others on this kind of CPU.
Fault = Literal[
    "decode", "embedder", "projector", "lease", "constraint", "image", "audio", "context", "unrepeatable", "reader"
]


class End(Struct, frozen=True, array_like=True):
    """End of a request; `reason` is None if it was cancelled, or failed because of `fault`.

    `defect` is the engine's own error for the log: its type and place.
    """

    reason: FinishReason | None
    stop: str | None
    usage: Usage
    prefill_ms: Measure
    decode_ms: Measure
    fault: Fault | None = None
    defect: Line | None = None


class CallDelta(Struct, frozen=True, array_like=True):
    """A piece of a tool call: first its id and name, then its arguments as they come, then that it `ended`."""

    index: Count
    id: str = ""
    name: str = ""
    arguments: str = ""
    invalid: Invalid | None = None  # once it ended
    ended: bool = False


class Extra(Struct, frozen=True, array_like=True):
    """Results of a step beside text; most requests have none.

    `calls` has pieces of tool calls and, in its place, text that came after the first call. `vectors` are 64-bit
    floats; of a decision they are a reading: the logarithm of the weight of all tokens, and the logits of labels.
    """

    tokens: Annotated[list[TokenCount], _One] = []
    logprobs: Annotated[list[Logprob], _One] = []
    reasoning: str = ""
    calls: Annotated[list[CallDelta | str], _Items] = []
    vectors: Annotated[list[bytes], Meta(max_length=MAX_TEXTS)] = []


class RequestUpdate(Struct, frozen=True, array_like=True):
    """Results of one step for one request.

    Its text, the number of tokens sampled, the prompt tokens done so far; and since its last update how many cells it
    did not have to compute, and how many prompt tokens were computed for it, for lost cells again.
    """

    key: Key
    sequence: SequenceNumber
    text: str
    sampled: TokenCount
    prompt_done: TokenCount
    extra: Extra | None = None
    end: End | None = None
    cached: TokenCount = 0
    computed: TokenCount = 0


class Parked(Struct, frozen=True, tag=True):
    """A request was parked; its sequence is free."""

    key: Key


class StepDone(Struct, frozen=True, tag=True):
    """Updates of all requests of one step, and the seconds of the engine's work since the last such frame.

    If a request ended, `resident` are the keys of waiting requests that would go on from cells of idle sequences.
    """

    step: Count
    updates: Annotated[list[RequestUpdate], Meta(max_length=MAX_UPDATES)]
    resident: Annotated[list[Key], Meta(max_length=MAX_UPDATES)] = []
    seconds: Measure = 0.0


class RunningJob(Struct, frozen=True, array_like=True):
    """The job at which the tokenizer thread is: its age, the size of its input, its request.

    Its age is the time for which it worked, or a sixth of the time that passed if that is more.
    """

    age_ms: Measure
    input_bytes: Count
    key: Key


class JobBegun(Struct, frozen=True, tag=True):
    """Sent before the tokenizer thread begins a job, which may keep the thread that sends heartbeats waiting."""

    job: RunningJob


class Heartbeat(Struct, frozen=True, tag=True):
    """Sent every second: the loop's step number, the age of the running step in ms, and the running job.

    `devices` are the GPUs that hold a part of the model.
    """

    step: Count
    step_age_ms: Measure
    counters: Counters
    job: RunningJob | None = None
    devices: Annotated[list[DeviceMemory], Meta(max_length=_MOST_DEVICES)] = []


class Warned(Struct, frozen=True, tag=True):
    """An entry for the daemon's log: one of a few events, and its facts."""

    event: Event
    facts: Facts


class Overwritten(Struct, frozen=True, tag=True):
    """The model's file was overwritten since it was opened: no result of it is sent, and the engine is to be ended."""


Work = Prepare | PrepareDecision | PrepareTexts | Tokenize | Detokenize | Forget | Run | RunTexts | Park | Resume | Halt
ToEngine = FindDevices | Load | Yield | SetThreads | SpareMemory | Work | Quit
Report = Prepared | Refused | TokenIds | TokensCounted | PlainText | StepDone | Parked
FromEngine = Devices | Loading | Ready | LoadFailed | JobBegun | Heartbeat | Warned | Overwritten | Report
