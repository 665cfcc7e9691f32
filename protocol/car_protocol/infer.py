"""`infer`, `infer_stream` and `$/cancelRequest`: the request object, the answer object and the chunks."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from car_protocol.envelope import Id
from car_protocol.meta import Params

Priority = Literal["latency_critical", "throughput"]
FinishReason = Literal["stop", "length", "deadline"]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-10, le=10)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_STOP_BYTES = 256
MAX_CLIENT_BYTES = 64
MAX_SUPERSEDE_BYTES = 128


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag="text", tag_field="type"):
    """One piece of a message's content."""

    text: str


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
    content: str | Annotated[list[TextPart], Meta(max_length=64)]

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Sampling(Struct, frozen=True, kw_only=True):
    """How the next token is chosen; the defaults are llama.cpp's usual ones."""

    temperature: Annotated[float, Meta(ge=0, le=5, description="0 is greedy")] = 0.8
    top_k: Annotated[int, Meta(ge=0, le=100_000, description="0 is off")] = 40
    top_p: Fraction = 0.95
    min_p: Fraction = 0.05
    typical_p: Fraction = 1.0
    repeat_penalty: Annotated[float, Meta(ge=0.1, le=10)] = 1.0
    repeat_last_n: Annotated[int, Meta(ge=-1, le=65_536, description="-1 is the whole context")] = 64
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    ignore_eos: bool = False


class InferParams(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `infer` and `infer_stream` take: exactly one of prompt, tokens and messages, and how to answer."""

    prompt: str | None = None
    tokens: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=512)] | None = None
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1, description="256, or what fits")] | None = None
    stop: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)] = []
    parse_special: bool = False
    seed: Annotated[int, Meta(ge=0, le=2**32 - 2, description="random where absent")] | None = None
    return_tokens: bool = False
    priority: Priority = "latency_critical"
    timeout_ms: Milliseconds | None = None
    queue_timeout_ms: Milliseconds | None = None
    wait: bool = True
    queue: bool = True
    supersede: str | None = None
    progress: bool = False
    client: str | None = None
    # As in Params: of two bases with members a Struct can have only one.
    meta: dict[str, Raw] = field(name="_meta", default_factory=dict)

    def __post_init__(self) -> None:
        given = [name for name in ("prompt", "tokens", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            at_fault = given[1] if given else "prompt"
            raise ValueError(f"`{at_fault}`: give exactly one of prompt, tokens, messages")
        if any(len(text.encode()) > MAX_STOP_BYTES for text in self.stop):
            raise ValueError("`stop`: a stop string is too long")
        if self.client is not None and len(self.client.encode()) > MAX_CLIENT_BYTES:
            raise ValueError("`client`: the label is too long")
        if self.supersede is not None and len(self.supersede.encode()) > MAX_SUPERSEDE_BYTES:
            raise ValueError("`supersede`: the key is too long")
        if self.parse_special and self.prompt is None:
            raise ValueError("`parse_special`: goes with prompt only")


class CancelParams(Params, frozen=True, kw_only=True):
    """Which request of this connection to cancel."""

    id: Id


class NoParams(Params, frozen=True):
    """No members."""


class Empty(Struct, frozen=True):
    """A result without members."""


class Usage(Struct, frozen=True):
    """Tokens of one request; `completion_tokens` counts every sampled token, the one that ended it too."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Timings(Struct, frozen=True):
    """Where one request's time went, in milliseconds."""

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    total_ms: float


class Answer(Struct, frozen=True, kw_only=True):
    """The result of `infer`; that of `infer_stream` has `chunks` in place of `text`."""

    text: str | UnsetType = UNSET
    finish_reason: FinishReason
    stop: str | UnsetType = UNSET
    model: str
    seed: int
    usage: Usage
    timings: Timings
    tokens: list[int] | UnsetType = UNSET
    chunks: int | UnsetType = UNSET


class Progress(Struct, frozen=True, omit_defaults=True):
    """The params of `infer_stream/progress`: position and milliseconds to go in the queue, or prompt tokens done."""

    id: Id
    phase: Literal["queued", "prefill"]
    position: int | UnsetType = UNSET
    eta_ms: int | UnsetType | None = UNSET
    done: int | UnsetType = UNSET
    total: int | UnsetType = UNSET


class Chunk(Struct, frozen=True):
    """The params of `infer_stream/chunk`; `seq` counts from 0 without gaps."""

    id: Id
    seq: int
    text: str
    tokens: list[int] | UnsetType = UNSET
