"""The objects that calls return: the wire's, in plain types.

Members that the daemon left out are None, and an answer's text is always a string. Members that an older daemon does
not send are empty. Objects without such members are the wire's own, re-exported by `car_client`.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from car_protocol.answer import FinishReason, Logprob, Timings, Usage
from car_protocol.capacity import Machine, ModelState, Policy, Pressure
from car_protocol.conversation import Invalid, ReasoningMode, ToolCall
from car_protocol.envelope import Id
from car_protocol.limits import Limits
from car_protocol.models import DeviceStatus, Estimate, ModelFile
from car_protocol.status import (
    ClusterStatus,
    EngineStatus,
    Memory,
    MoreConnections,
    OtherUsers,
    Phase,
    Queue,
    Totals,
)
from car_protocol.tool_calls import joined_calls

T = TypeVar("T")
A = TypeVar("A", "Answer", "OneAnswer")


def _no_names() -> list[str]:
    # A factory of its own, because an empty member whose factory is `list` would be left out when encoded again.
    return []


class OneAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several answers; in that of a stream the pieces are joined."""

    text: str = ""
    """The text without thoughts; empty where there is none."""
    reasoning: str | None = None
    """The thoughts of a model that thinks, with `reasoning="auto"`."""
    tool_calls: list[ToolCall] | None = None
    """The calls of tools that the model made."""
    finish_reason: FinishReason
    """As in `Answer`."""
    stop: str | None = None
    """The stop string that ended the text."""
    logprobs: list[Logprob] | None = None
    """The likeliest tokens at each place, where `logprobs` requested them."""
    tokens: list[int] | None = None
    """Token ids, where `return_tokens` requested them."""


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of `infer`; that of a stream has the same members, its pieces joined."""

    text: str = ""
    """The text without thoughts; empty where there is none."""
    reasoning: str | None = None
    """The thoughts of a model that thinks, with `reasoning="auto"`."""
    tool_calls: list[ToolCall] | None = None
    """The calls of tools that the model made."""
    finish_reason: FinishReason | None = None
    """`stop` at an end token or a stop string, `length` at `max_tokens` or the end of the context, `deadline` at
    `timeout_ms`; None with `n`.
    """
    stop: str | None = None
    """The stop string that ended the text."""
    model: str
    """The name of the model that answered."""
    seed: int
    """The seed that the sampler used."""
    usage: Usage
    """Tokens of the prompt and of the answer."""
    timings: Timings
    """Milliseconds of each phase."""
    logprobs: list[Logprob] | None = None
    """The likeliest tokens at each place, where `logprobs` requested them."""
    tokens: list[int] | None = None
    """Token ids, where `return_tokens` requested them."""
    ignored: list[str] | None = None
    """With `lenient`: JSON pointers to keywords of the schema that were left out."""
    chunks: int | None = None
    """The number of chunks of a stream."""
    answers: list[OneAnswer] | None = None
    """With `n` above 1: each answer's own members, which are left out above."""


class ToolCallDelta(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A piece of a tool call; the `arguments` of all pieces together are those of the call."""

    index: int
    """Of the call in its answer, from 0."""
    id: str | None = None
    """Of the call, in its first piece."""
    name: str | None = None
    """The function's, whole, in the call's first piece."""
    arguments: str | None = None
    """Goes on with the arguments of the pieces before it."""
    invalid: Invalid | None = None
    """As in the answer, in the call's last piece."""


# Chunks are kept until their answer is complete; without gc their number does not slow down collections.
class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A piece of a streamed answer, in the order of `seq`."""

    id: Id
    """Of the request."""
    seq: int
    """Counts from 0 without gaps, over all answers."""
    index: int | None = None
    """Of the answer that it belongs to, from 0, with `n` above 1."""
    text: str
    """Cut between characters; no part of a stop string is ever sent."""
    reasoning: str | None = None
    """A model's thoughts."""
    tool_calls: list[ToolCallDelta] | None = None
    """Pieces of calls as they come; they follow the chunk's text."""
    tokens: list[int] | None = None
    """With `return_tokens`."""
    logprobs: list[Logprob] | None = None
    """As in the answer, where requested."""


class Capacity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's capacity and what decided it, in sequences; `inputs` are the figures that the policy used."""

    capacity: int
    """Requests of this model that run at once now: declared, lowered by pressure and by the limit of the machine, never
    below 1; 1 while its engine is not ready.
    """
    declared: int | None
    """The figure that its engine declared; null until it is ready."""
    in_use: int
    """Sequences leased."""
    available: int
    """Sequences of the model that are free; with `machine` its limit may keep them from being leased."""
    parked: int
    """Requests set aside, which hold no sequence."""
    queued: int
    """Requests of this model that wait, also outside of a full queue."""
    queue_limit: int
    """The bound of the queue, over all models."""
    policy: Policy | None
    """The rule that decided `declared`."""
    pressure: Pressure
    """Of memory: the highest of the machine and of the model's GPUs."""
    state: ModelState
    model: str
    context_tokens: int | None
    """Of one sequence, of replicas the longest; null until one is ready."""
    machine: Machine
    """Over all models."""
    generation: int
    """Grows with every change of state, `declared`, pressure and limits; the counts change without it."""
    protocol: str
    """The version of this contract."""
    version: str
    """Of the daemon."""
    limits: Limits
    """The bounds in force."""
    reason: str | None = None
    """The reason why it failed or found no room."""
    inputs: dict[str, float] | None = None
    """The figures that `policy` decided by: `free_bytes`, `kv_bytes_per_sequence`, `tokens_per_s_N` measured with N
    sequences, and if other programs had the cores meanwhile `cores_of_others`, until it is measured again in an idle
    minute.
    """


class Defaults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values for options that a request leaves out; None for options that have the daemon's usual value."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: ReasoningMode | None = None
    system: str | None = None
    """The first message of conversations without a system message."""


class Model(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's entry; sizes in bytes, times in seconds since the epoch."""

    name: str
    aliases: list[str] = field(default_factory=_no_names)
    """Further names of it."""
    defaults: Defaults = field(default_factory=Defaults)
    """Values for members that a request leaves out."""
    path: str
    """Of its file for administrators, the file's name for others."""
    state: ModelState
    default: bool
    pinned: bool
    """Stays loaded."""
    size_bytes: int | None
    """Of its file; null where there is none."""
    capacity: int
    """As `inference/capacity` has it."""
    context_tokens: int | None
    adapters: list[str]
    """Names for `lora`."""
    can: list[str]
    """Of `generate`, `chat`, `images`, `audio`, `tools` (its template shows them), `thinking` (it has thoughts), `fill`
    (a `suffix` beside the prompt), `embed`, `rerank`; of a model that is not loaded by its header, which
    `models/list` reads.
    """
    device: str
    """`cpu`, `gpu`, `gpu0` ...; `auto` until GPUs were looked for; of several replicas joined by `+`."""
    replicas: int
    """Engines, over all of its devices."""
    loaded_at: float | None = None
    """Seconds since the epoch."""
    last_used_at: float | None = None
    """Seconds since the epoch."""
    place: str | None = None
    """`here`, or `ray`: its engines run on machines of a cluster."""
    up: int | None = None
    """Of `replicas`: the engines that serve now."""
    waiting_for: str | None = None
    """What no machine of the cluster has for a further engine."""
    reason: str | None = None
    """The reason why it failed or found no room."""


class ModelDetails(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's entry with the header of its file and an estimate of its memory."""

    model: Model
    file: ModelFile | None = None
    estimate: Estimate | None = None
    devices: list[DeviceStatus] | None = None
    """Of a model that is loaded on GPUs: one for each engine and GPU."""
    host_experts: int | None = None
    """Layers whose experts the GPUs have no room for: the most of an engine."""
    """The entry whose model guesses tokens for this one."""
    why: str | None = None
    """In place of the other two: why the file is not fit to be read."""


class ModelStatus(Model, frozen=True, kw_only=True, omit_defaults=True):
    """A model's entry with its engines."""

    engines: list[EngineStatus]


class SequenceStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A leased sequence; `id` is None for requests of other users."""

    model: str
    sequence: int
    """Its number in the engine."""
    phase: Phase
    uid: int
    connection: int
    prompt_tokens: int
    done_tokens: int
    """Of the prompt, then of the answer."""
    age_ms: float
    """Since the request arrived."""
    id: Id | None = None
    """Left out for requests of other users."""
    client: str | None = None
    """The label that the request gave."""
    tenant: str | None = None
    """The tenant that the request gave."""

    @property
    def caller(self) -> str:
        """The tenant and the label, as far as the request gave them."""
        return "/".join(filter(None, (self.tenant, self.client)))


class ConnectionStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A connection of a client to the daemon."""

    connection: int
    """Its number."""
    uid: int
    pid: int
    in_flight: int
    """Requests."""
    tokens_served: int
    """Completion tokens of ended requests."""
    client: str | None = None
    """The label that a request gave last."""
    tenant: str | None = None
    """The tenant that a request gave last."""

    @property
    def caller(self) -> str:
        """The tenant and the label, as far as a request gave them."""
        return "/".join(filter(None, (self.tenant, self.client)))


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of the daemon's work."""

    version: str
    protocol: str
    pid: int
    uptime_s: float
    """Since its start."""
    state: Literal["serving", "draining"]
    socket: str
    """Path of the socket that it listens on."""
    loop_lag_ms: float
    """Delay of the daemon's event loop."""
    capacity: Capacity
    """Of the default model."""
    models: list[ModelStatus]
    """Each model's entry with its `engines`, the default one first."""
    queue: Queue
    sequences: list[SequenceStatus]
    """Leased by requests for answers: of the caller's user, for administrators of all."""
    connections: list[ConnectionStatus]
    """Of the caller's user, for administrators of all; the 100 busiest."""
    totals: Totals
    """Requests since the start."""
    memory: Memory
    """Of the machine."""
    more_connections: MoreConnections | None = None
    """Sums over the connections that the list leaves out; absent where it has all."""
    others: OtherUsers | None = None
    """All other users; left out for administrators."""
    cluster: ClusterStatus | None = None
    """For administrators; left out without `[cluster]`."""


def joined(answer: Answer, chunks: Sequence[Chunk]) -> Answer:
    """Return the answer of a stream with the contents of its chunks."""
    if answer.answers is None:
        return _with_chunks(answer, chunks)
    of_answer: list[list[Chunk]] = [[] for _ in answer.answers]
    for chunk in chunks:
        of_answer[chunk.index or 0].append(chunk)
    return replace(answer, answers=list(map(_with_chunks, answer.answers, of_answer)))


def _with_chunks(answer: A, chunks: Sequence[Chunk]) -> A:
    return replace(
        answer,
        text="".join(chunk.text for chunk in chunks),
        reasoning="".join(_given(chunk.reasoning for chunk in chunks)) or None,
        tool_calls=joined_calls(piece for chunk in chunks for piece in chunk.tool_calls or ()) or None,
        tokens=_concatenated(chunk.tokens for chunk in chunks),
        logprobs=_concatenated(chunk.logprobs for chunk in chunks),
    )


def _given(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _concatenated(lists: Iterable[list[T] | None]) -> list[T] | None:
    given = _given(lists)
    return [item for each in given for item in each] if given else None
