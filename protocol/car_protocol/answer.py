"""What a request gets back: the answer object, and the chunks and progress of a stream."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from car_protocol.conversation import ToolCall
from car_protocol.envelope import Id

FinishReason = Literal["stop", "length", "deadline"]


class TokenChoice(Struct, frozen=True):
    """A token that the model could have chosen; `logprob` is a natural logarithm, -1000.0 for a probability of 0."""

    token: int
    text: str
    logprob: float


class Logprob(Struct, frozen=True):
    """The token that was chosen, and the likeliest ones at its place."""

    token: int
    text: str
    logprob: float
    top: list[TokenChoice]


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
    """The result of `infer`; that of `infer_stream` has `chunks` in place of the texts."""

    text: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    finish_reason: FinishReason
    stop: str | UnsetType = UNSET
    model: str
    seed: int
    usage: Usage
    timings: Timings
    logprobs: list[Logprob] | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    chunks: int | UnsetType = UNSET


class Chunk(Struct, frozen=True, kw_only=True):
    """The params of `infer_stream/chunk`; `seq` counts from 0 without gaps."""

    id: Id
    seq: int
    text: str
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    logprobs: list[Logprob] | UnsetType = UNSET


class Progress(Struct, frozen=True, omit_defaults=True):
    """The params of `infer_stream/progress`: position and milliseconds to go in the queue, or prompt tokens done."""

    id: Id
    phase: Literal["queued", "prefill"]
    position: int | UnsetType = UNSET
    eta_ms: int | UnsetType | None = UNSET
    done: int | UnsetType = UNSET
    total: int | UnsetType = UNSET
