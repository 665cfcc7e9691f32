"""`infer`, `infer_stream` and `$/cancelRequest`: the request object."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from car_protocol.conversation import Message, NamedTool, ReasoningMode, ToolChoice, Tools
from car_protocol.envelope import Id
from car_protocol.free_form import check_free_form
from car_protocol.meta import Params
from car_protocol.notes import note
from car_protocol.sampling import Sampling

Priority = Literal["latency_critical", "throughput"]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_STOP_BYTES = 256
MAX_CLIENT_BYTES = 64
MAX_SUPERSEDE_BYTES = 128
MAX_SESSION_BYTES = 128
MAX_GRAMMAR_BYTES = 256 * 1024
MAX_LOGPROBS = 20


class Lora(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the model's adapters, and how much of it."""

    name: Annotated[str, Meta(max_length=128, description="of the model's `adapters`")]
    scale: Annotated[float, Meta(ge=-10, le=10)] = 1.0


class InferParams(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `infer` and `infer_stream` take: exactly one of prompt, tokens and messages, and how to answer."""

    prompt: Annotated[str | None, note("special tokens in it count only with `parse_special`")] = None
    tokens: Annotated[Annotated[list[TokenId], Meta(min_length=1)] | None, note("token ids, taken as they are")] = None
    messages: Annotated[
        Annotated[list[Message], Meta(min_length=1, max_length=512)] | None,
        note("a conversation, rendered by the model's chat template; no text in it is ever parsed for special tokens"),
    ] = None
    model: Annotated[str | None, note("a name of `models/list`; the default model where absent")] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        note("256 where absent, or what fits; a figure that does not fit the context is 1006"),
    ] = None
    stop: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        Meta(
            max_length=16,
            description=f"of up to {MAX_STOP_BYTES} bytes each; the earliest match ends the text before it, at equal "
            "start the longest",
        ),
    ] = field(default_factory=list)
    parse_special: Annotated[bool, note("goes with `prompt` only")] = False
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**32 - 2)] | None, note("random where absent; the answer says which")
    ] = None
    grammar: Annotated[str | None, note("llama.cpp's GBNF, up to 256 KiB; the whole answer has to follow it")] = None
    json_schema: Annotated[
        dict[str, Any] | None,
        note(
            "the answer is JSON and valid under it. An object's schema that lists `properties` and says nothing of "
            "others forbids others, unless `allOf`, or a `$ref` beside `properties`, stands anywhere, or it is a "
            "branch beside `properties`. All its objects together list up to 3000 `properties`, 3000 `required` and "
            "64 `patternProperties`; so do the tools of a forced call. With `allOf`, or a `$ref` with something "
            "beside it, a schema holds up to 16 `pattern`s. Not beside `grammar`"
        ),
    ] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        note("how many of the likeliest tokens come with each token, by the model alone, before any sampler"),
    ] = None
    return_tokens: Annotated[bool, note("the answer has `tokens` too")] = False
    tools: Annotated[Tools, note("for templates that show tools")] = field(default_factory=list)
    tool_choice: Annotated[ToolChoice, note("`required` and a named tool force the call by a grammar")] = "auto"
    reasoning: Annotated[
        ReasoningMode,
        note(
            "of models that think: `auto` gives their thoughts in `reasoning`, `keep` leaves them in `text`, `off` "
            "asks for none"
        ),
    ] = "auto"
    template_args: Annotated[dict[str, Any], note("further variables for the chat template")] = field(
        default_factory=dict
    )
    lora: Annotated[list[Lora], Meta(max_length=8)] = field(default_factory=list)
    priority: Annotated[Priority, note("`throughput` waits for the others; after 30 s it counts as one of them")] = (
        "latency_critical"
    )
    timeout_ms: Annotated[Milliseconds | None, note("for the whole answer, from arrival")] = None
    queue_timeout_ms: Annotated[Milliseconds | None, note("for the wait, from arrival")] = None
    wait: Annotated[bool, note("false: refused (1001) unless a sequence is free now")] = True
    queue: Annotated[bool, note("false: refused (1001) when the queue is full, whatever its policy")] = True
    supersede: Annotated[
        str | None,
        note(
            f"a key of up to {MAX_SUPERSEDE_BYTES} bytes: a newer request of this connection with the same key, once "
            "it is known to be valid, cancels the older one (`data.superseded`) and takes its place in a full queue, "
            "unless it is itself held back by one"
        ),
    ] = None
    session: Annotated[
        str | None,
        note(
            f"up to {MAX_SESSION_BYTES} bytes; prompts share cached prefixes with those of the same user and session, "
            "and with no others"
        ),
    ] = None
    cache_prompt: Annotated[bool, note("false: neither uses cached prefixes nor leaves one")] = True
    device: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        note("where to run, `cpu`, `gpu` (any) or `gpu0` ...; 1004 (`lacks: device`) where no replica is there"),
    ] = None
    progress: Annotated[bool, note("`infer_stream/progress` notifications, also for `infer`")] = False
    client: Annotated[
        str | None,
        note(f"a label of up to {MAX_CLIENT_BYTES} bytes, for fairness and status; the process where absent"),
    ] = None
    # As in Params: of two bases with members a Struct can have only one.
    meta: Annotated[dict[str, Raw], note("the caller's own; only `traceparent` is read")] = field(
        name="_meta", default_factory=dict
    )

    def __post_init__(self) -> None:
        self._check_combinations()
        self._check_sizes()

    def _check_combinations(self) -> None:
        given = [name for name in ("prompt", "tokens", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            at_fault = given[1] if given else "prompt"
            raise ValueError(f"`{at_fault}`: give exactly one of prompt, tokens, messages")
        if self.parse_special and self.prompt is None:
            raise ValueError("`parse_special`: goes with prompt only")
        if self.grammar is not None and self.json_schema is not None:
            raise ValueError("`json_schema`: give grammar or json_schema, not both")
        for name in ("tools", "template_args"):
            if getattr(self, name) and self.messages is None:
                raise ValueError(f"`{name}`: goes with messages only")
        if len({each.name for each in self.lora}) < len(self.lora):
            raise ValueError("`lora`: an adapter is named twice")
        self._check_tool_choice()

    def _check_tool_choice(self) -> None:
        if len({tool.function.name for tool in self.tools}) < len(self.tools):
            raise ValueError("`tools`: a function is named twice")
        choice = self.tool_choice
        if choice in ("auto", "none"):
            return
        if not self.tools:
            raise ValueError("`tool_choice`: there are no tools to choose from")
        if isinstance(choice, NamedTool) and all(choice.name != tool.function.name for tool in self.tools):
            raise ValueError("`tool_choice`: no tool has this name")
        if self.grammar is not None or self.json_schema is not None:
            raise ValueError("`tool_choice`: a forced call leaves no room for another grammar")

    def _check_sizes(self) -> None:
        if any(len(text.encode()) > MAX_STOP_BYTES for text in self.stop):
            raise ValueError("`stop`: a stop string is too long")
        if self.client is not None and len(self.client.encode()) > MAX_CLIENT_BYTES:
            raise ValueError("`client`: the label is too long")
        if self.supersede is not None and len(self.supersede.encode()) > MAX_SUPERSEDE_BYTES:
            raise ValueError("`supersede`: the key is too long")
        if self.session is not None and len(self.session.encode()) > MAX_SESSION_BYTES:
            raise ValueError("`session`: the name is too long")
        if self.grammar is not None and len(self.grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise ValueError("`grammar`: the grammar is too long")
        check_free_form("json_schema", self.json_schema)
        check_free_form("template_args", self.template_args)
        for tool in self.tools:
            check_free_form("tools", tool.function.parameters)


class CancelParams(Params, frozen=True, kw_only=True):
    """Which request of this connection to cancel."""

    id: Annotated[Id, note("unknown ids are ignored")]


class NoParams(Params, frozen=True):
    """No members."""


class Empty(Struct, frozen=True):
    """A result without members."""
