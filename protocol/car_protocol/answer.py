"""Answers: the answer object, the chunks and progress of a stream, and tool calls out of their pieces."""

from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Literal, Protocol

from msgspec import UNSET, Meta, Struct, UnsetType

from car_protocol.conversation import FunctionCall, Invalid, ToolCall
from car_protocol.envelope import Id
from car_protocol.meta import note


class CallPiece(Protocol):
    """A piece of a call; members that say nothing are empty or None."""

    @property
    def index(self) -> int:
        """The call's place among the calls of its answer."""
        ...

    @property
    def id(self) -> str | None:
        """The call's id, in its first piece."""
        ...

    @property
    def name(self) -> str | None:
        """The function's name, in the first piece."""
        ...

    @property
    def arguments(self) -> str | None:
        """The next part of the arguments."""
        ...

    @property
    def invalid(self) -> Invalid | None:
        """The fault of the call, in its last piece."""
        ...


def joined_calls(pieces: Iterable[CallPiece]) -> list[ToolCall]:
    """Return the calls that pieces in their order make up."""
    return [_joined(list(of_call)) for _, of_call in groupby(pieces, key=lambda piece: piece.index)]


def _joined(pieces: list[CallPiece]) -> ToolCall:
    called = FunctionCall(pieces[0].name or "", "".join(piece.arguments or "" for piece in pieces))
    return ToolCall(pieces[0].id or "", called, invalid=pieces[-1].invalid or None)


FinishReason = Literal["stop", "length", "deadline"]


MAX_LOGPROBS = 20
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# The ranges of what an engine sends: every reader of JSON has such an integer exactly.
_Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
_Logarithm = Meta(ge=-1000.0, le=0.0)


class TokenChoice(Struct, frozen=True):
    """A token that the model could have chosen; `logprob` is a natural logarithm, -1000.0 for a probability of 0."""

    token: TokenId
    text: str
    logprob: Annotated[float, _Logarithm, note("a natural logarithm; -1000.0 if impossible")]


class Logprob(Struct, frozen=True):
    """The token that was chosen, and the likeliest tokens at its place."""

    token: TokenId
    text: str
    logprob: Annotated[
        float, _Logarithm, note("by the model alone, before any sampler; -1000.0 for a probability of 0")
    ]
    top: Annotated[list[TokenChoice], Meta(max_length=MAX_LOGPROBS), note("the likeliest at its place")]


MOST_WORDS = 400  # characters
_Words = Annotated[str, Meta(max_length=MOST_WORDS)]
PartedBy = Literal["system", "tools", "message", "template", "prompt", "evicted", "no_mark", "restart"]
# What comes after another message or text is mostly new: only its app knows whether an earlier one was edited.
MOSTLY_NEW: tuple[PartedBy, ...] = ("message", "prompt")


class Parted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason why tokens were computed that an earlier prompt of the same caller has, or nearly has."""

    reason: Annotated[
        PartedBy,
        note(
            "the part that differs from the nearest earlier prompt: a `system` message, its `tools`, another "
            "`message`, text of the `template`, a `prompt` without messages; or why its cells are not there: `evicted` "
            "for others, `no_mark` to go on from, ended with an engine (`restart`)"
        ),
    ]
    at: Annotated[_Count, note("tokens that it has in common with the nearest earlier prompt")]
    tokens: Annotated[_Count, note("tokens that were computed for this reason")]
    message: Annotated[_Count | None, note("the message that differs, from 0")] = None
    role: Annotated[str | None, note("of that message")] = None
    was: Annotated[_Words | None, note("the earlier prompt's words there")] = None
    now: Annotated[_Words | None, note("this prompt's words there")] = None


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens of one request; `completion_tokens` counts every sampled token, the one that ended it too."""

    prompt_tokens: _Count
    cached_tokens: Annotated[_Count, note("of the prompt, not computed again")]
    completion_tokens: Annotated[
        _Count,
        note("sampled tokens: also the token that ended the text, and tokens that a stop string cut off"),
    ]
    parted: Annotated[
        Parted | None,
        note("of `infer` and `infer_stream`: the reason why not more of the prompt is cached"),
    ] = None


class Timings(Struct, frozen=True):
    """The parts of one request's time, in milliseconds."""

    queue_ms: Annotated[float, note("from arrival to the lease")]
    prefill_ms: Annotated[float, note("the prompt's computation")]
    ttft_ms: Annotated[float, note("from arrival to the first token")]
    decode_ms: Annotated[float, note("from the first token to the last, also while it was parked")]
    total_ms: Annotated[float, note("from arrival to the end")]


class OneAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several answers; that of a stream has `finish_reason` and `stop` only."""

    text: Annotated[str | None, note("of `infer`")] = None
    reasoning: Annotated[str | None, note("of `infer`: a model's thoughts")] = None
    tool_calls: Annotated[list[ToolCall] | None, note("of `infer`")] = None
    finish_reason: Annotated[
        FinishReason,
        note("`stop` is an end token or a stop string, `length` is `max_tokens` or the end of the context"),
    ]
    stop: Annotated[str | None, note("the string that was hit")] = None
    logprobs: Annotated[list[Logprob] | None, note("of `infer`, if requested")] = None
    tokens: Annotated[list[int] | None, note("of `infer`, with `return_tokens`")] = None


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of `infer`; that of `infer_stream` has `chunks` in place of the texts."""

    text: Annotated[str | None, note("of `infer`")] = None
    reasoning: Annotated[str | None, note("of `infer`: a model's thoughts")] = None
    tool_calls: Annotated[list[ToolCall] | None, note("of `infer`")] = None
    finish_reason: Annotated[
        FinishReason | None,
        note("`stop` is an end token or a stop string, `length` is `max_tokens` or the end of the context"),
    ] = None
    stop: Annotated[str | None, note("the string that was hit")] = None
    model: str
    seed: Annotated[int, note("the seed that the sampler used")]
    usage: Usage
    timings: Timings
    logprobs: Annotated[list[Logprob] | None, note("of `infer`, if requested")] = None
    tokens: Annotated[list[int] | None, note("of `infer`, with `return_tokens`")] = None
    ignored: Annotated[
        list[str] | None, note("with `lenient`: JSON pointers to keywords of the schema that were left out")
    ] = None
    chunks: Annotated[int | None, note("of `infer_stream`: the number that was sent")] = None
    fingerprint: Annotated[
        str | None,
        note(
            "a digest of the model's files, the builds of card and llama.cpp, the device and `kv_type`; it stays the "
            "same after a restart"
        ),
    ] = None
    answers: Annotated[
        list[OneAnswer] | None,
        note(
            "with `n` above 1: text, reasoning, tool_calls, finish_reason, stop, logprobs and tokens of each answer, "
            "which are not beside it then"
        ),
    ] = None


class ToolCallDelta(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A piece of a tool call; the `arguments` of all pieces together are the arguments of the call."""

    index: Annotated[int, note("of the call in its answer, from 0")]
    id: Annotated[str | None, note("of the call, in its first piece")] = None
    name: Annotated[str | None, note("the function's, whole, in the call's first piece")] = None
    arguments: Annotated[str | None, note("goes on with the arguments of the pieces before it")] = None
    invalid: Annotated[Invalid | None, note("as in the answer, in the call's last piece")] = None


# A client keeps chunks until their answer is complete; without gc their number does not slow down collections.
class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The params of `infer_stream/chunk`; `seq` counts from 0 without gaps."""

    id: Annotated[Id, note("of the request")]
    seq: Annotated[int, note("counts from 0 without gaps, over all answers")]
    index: Annotated[int | None, note("of the answer that it belongs to, from 0, with `n` above 1")] = None
    text: Annotated[str, note("cut between characters; no part of a stop string is ever sent")]
    reasoning: Annotated[str | None, note("a model's thoughts")] = None
    tool_calls: Annotated[
        list[ToolCallDelta] | None, note("pieces of calls as they come; they follow the chunk's text")
    ] = None
    tokens: Annotated[list[int] | None, note("with `return_tokens`")] = None
    logprobs: Annotated[list[Logprob] | None, note("as in the answer, if requested")] = None


class Progress(Struct, frozen=True, omit_defaults=True):
    """The params of `infer_stream/progress`: position and time in the queue, or tokens or questions done."""

    id: Annotated[Id, note("of the request")]
    phase: Literal["queued", "prefill", "questions"]
    position: Annotated[int | None, note("in the queue of its model; 0 is next")] = None
    # In the queue it is null or a number, afterwards it is absent.
    eta_ms: Annotated[int | UnsetType | None, note("null until a request has ended")] = UNSET
    done: Annotated[int | None, note("tokens of the prompt that were taken in, or questions with an answer")] = None
    total: Annotated[int | None, note("tokens of the prompt, or questions")] = None
    cached: Annotated[int | None, note("of them, not computed again")] = None
