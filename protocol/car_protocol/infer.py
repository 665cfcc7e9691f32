"""`infer`, `infer_stream` and `$/cancelRequest`: the request object."""

from typing import Annotated, Any, Literal, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from car_protocol.answer import MAX_LOGPROBS, TokenId
from car_protocol.conversation import (
    Messages,
    NamedTool,
    ReasoningMode,
    ToolChoice,
    Tools,
    check_continued,
    check_free_form,
    check_tools,
)
from car_protocol.envelope import Id
from car_protocol.meta import Label, Params, Person, Tenant, check_origin, note
from car_protocol.sampling import Fraction, Sampling, Temperature

Priority = Literal["latency_critical", "throughput"]
SupersedeScope = Literal["connection", "program"]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
MAX_STOP_BYTES = 256
MAX_SUPERSEDE_BYTES = 128
MAX_SESSION_BYTES = 128
MAX_GRAMMAR_BYTES = 256 * 1024
MAX_ANSWERS = 8
SEEDS = 2**32 - 1  # the highest seed and 1; after it they go on from 0
_Temperature = Annotated[
    Temperature | UnsetType,
    note("randomness of the draw; 0 is greedy; 0.8 if absent, unless the model's entry has another"),
]
_TopP = Annotated[
    Fraction | UnsetType,
    note(
        "keep the likeliest tokens that together have this probability; 1 is off; 0.95 if absent, unless the "
        "model's entry has another"
    ),
]
_Seed = Annotated[
    Annotated[int, Meta(ge=0, le=SEEDS - 1)] | None,
    note("the sampler's seed; random if absent, 0 with `reproducible`; the answer has it"),
]
_Reasoning = Annotated[
    ReasoningMode | UnsetType,
    note(
        "thoughts: `auto` (without another in the model's entry) returns them in `reasoning`; `keep` leaves them in "
        "`text`; `on` also has a model think that thinks only on request (1004, `lacks: thinking`, of others); `off` "
        "has it write none, or the fewest that its template allows"
    ),
]


class Lora(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the model's adapters, and how much of it."""

    name: Annotated[str, Meta(max_length=128, description="of the model's `adapters`")]
    scale: Annotated[float, Meta(ge=-10, le=10)] = 1.0


class GenerationOptions(Sampling, frozen=True, kw_only=True):
    """The options of an answer, with which an engine runs a request."""

    stop: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        Meta(
            max_length=16,
            description=f"texts of up to {MAX_STOP_BYTES} bytes that end the answer before them: the earliest match, "
            "at equal start the longest",
        ),
    ] = field(default_factory=list)
    seed: Annotated[int, Meta(ge=0, le=SEEDS - 1)] = 0
    reproducible: Annotated[
        bool,
        note(
            "the same request gives the same answer again, whatever else runs, at a cost; 1004 "
            "(`lacks: reproducible`) if that cannot be kept"
        ),
    ] = False
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        note("likeliest tokens that come with each token, by the model alone, before any sampler"),
    ] = None
    reasoning_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        note("the most tokens of thoughts: a longer thought is closed there, and the answer follows"),
    ] = None
    return_tokens: Annotated[bool, note("return the answer's token ids too")] = False
    lora: Annotated[
        list[Lora], Meta(max_length=8, description="the model's adapters to apply, each with its scale")
    ] = field(default_factory=list)

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """The adapters that change something, in the order that makes equal sets equal."""
        return tuple(sorted((each.name, each.scale) for each in self.lora if each.scale))


class PromptParams(GenerationOptions, frozen=True, kw_only=True):
    """A prompt with all that an engine needs to prepare it: exactly one of prompt, tokens and messages, and options."""

    prompt: Annotated[str | None, note("special tokens in it count only with `parse_special`")] = None
    suffix: Annotated[
        str | None,
        note(
            "the text after the gap that the answer fills; the text before is `prompt`; 1004 (`lacks: fill`) of "
            "models that cannot"
        ),
    ] = None
    tokens: Annotated[Annotated[list[TokenId], Meta(min_length=1)] | None, note("token ids, taken as they are")] = None
    messages: Annotated[
        Messages | None,
        note("a conversation, rendered by the model's chat template; no text in it is ever parsed for special tokens"),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        note(
            "the longest answer, cut to what fits the context; if absent what fits, or the model's `default_max_tokens`"
        ),
    ] = None
    parse_special: Annotated[
        bool, note("read special tokens that are written out in `prompt` and `suffix` as such")
    ] = False
    grammar: Annotated[
        str | None, note("a grammar in llama.cpp's GBNF, up to 256 KiB, that the whole answer follows")
    ] = None
    json_schema: Annotated[
        dict[str, Any] | None,
        note(
            "a JSON schema: the answer is valid under it, or calls one of the `tools`. An object's schema that lists "
            "`properties` and says nothing of others forbids others, unless `allOf`, or a `$ref` beside `properties`, "
            "is anywhere, or it is a branch beside `properties`. All its objects together list up to 3000 "
            "`properties`, 3000 `required` and 64 `patternProperties`; so do the tools of a forced call. With "
            "`allOf`, or a `$ref` with something beside it, a schema has up to 16 `pattern`s. Not beside `grammar`"
        ),
    ] = None
    lenient: Annotated[
        bool,
        note("leave out keywords of `json_schema` that cannot be enforced; the answer's `ignored` names them"),
    ] = False
    tools: Annotated[Tools, note("functions that the model may call, for templates that show tools")] = field(
        default_factory=list
    )
    tool_choice: Annotated[ToolChoice, note("`required` and a named tool force a call by a grammar")] = "auto"
    parallel_tool_calls: Annotated[bool, note("false: the answer ends with its first call")] = True
    reasoning: ReasoningMode = "auto"
    continue_last: Annotated[
        bool, note("go on in the last message, an assistant's text, and return only what follows it")
    ] = False
    template_args: Annotated[dict[str, Any], note("further variables for the chat template")] = field(
        default_factory=dict
    )
    priority: Annotated[
        Priority, note("`throughput` gives way to the other class; after 30 s of waiting it counts as that class")
    ] = "latency_critical"


class InferParams(PromptParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The params of `infer` and `infer_stream`: a prompt and its options, and how the daemon is to run it."""

    reasoning: _Reasoning = UNSET  # type: ignore[assignment]  # the four are absent until `part_of` fills them in
    temperature: _Temperature = UNSET  # type: ignore[assignment]  # likewise
    top_p: _TopP = UNSET  # type: ignore[assignment]  # likewise
    seed: _Seed = None  # type: ignore[assignment]  # likewise
    model: Annotated[str | None, note("a name of `models/list`; the default model if absent")] = None
    n: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_ANSWERS,
            description="answers to this prompt, which is computed once: each takes a sequence and a place in the "
            "queue, and answer i has the seed `seed` + i",
        ),
    ] = 1
    timeout_ms: Annotated[
        Milliseconds | None,
        note("ms from arrival to the end of the answer: 1002 before the first token, an early end after it"),
    ] = None
    queue_timeout_ms: Annotated[Milliseconds | None, note("ms from arrival to the lease: 1002")] = None
    wait: Annotated[bool, note("false: refused (1001) unless a sequence is free now")] = True
    queue: Annotated[bool, note("false: refused (1001) when the queue is full, whatever its policy")] = True
    supersede: Annotated[
        str | None,
        note(
            f"a key of up to {MAX_SUPERSEDE_BYTES} bytes: a valid newer request of this connection with the same key "
            "cancels the older one (`data.superseded`) and takes its place in a full queue, unless it is held back"
        ),
    ] = None
    supersede_scope: Annotated[
        SupersedeScope,
        note("`program`: `supersede` counts on all connections of the process for the same tenant"),
    ] = "connection"
    session: Annotated[
        str | None,
        note(f"a name of up to {MAX_SESSION_BYTES} bytes; the replica that ran the session last is preferred"),
    ] = None
    cache_salt: Annotated[
        str | None,
        note(f"a text of up to {MAX_SESSION_BYTES} bytes; prompts share prefixes with the same user and salt only"),
    ] = None
    cache_prompt: Annotated[bool, note("false: neither uses cached prefixes nor leaves one")] = True
    device: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        note("`cpu`, `gpu` (any) or `gpu0` ...; 1004 (`lacks: device`) if no replica is there"),
    ] = None
    progress: Annotated[bool, note("send `infer_stream/progress` notifications, also for `infer`")] = False
    client: Label = None
    tenant: Tenant = ""
    # As in Params: of two bases with members a Struct can have only one.
    meta: Annotated[dict[str, Raw], note("the caller's own; only `traceparent` is read")] = field(
        name="_meta", default_factory=dict
    )
    person: Person = None

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
        if self.suffix is not None and self.prompt is None:
            raise ValueError("`suffix`: goes with prompt only")
        if self.grammar is not None and self.json_schema is not None:
            raise ValueError("`json_schema`: give grammar or json_schema, not both")
        if self.lenient and self.json_schema is None:
            raise ValueError("`lenient`: goes with json_schema only")
        for name in ("tools", "template_args"):
            if getattr(self, name) and self.messages is None:
                raise ValueError(f"`{name}`: goes with messages only")
        if len({each.name for each in self.lora}) < len(self.lora):
            raise ValueError("`lora`: an adapter is named twice")
        check_continued(self.messages, continues=self.continue_last)
        self._check_tool_choice()

    def _check_tool_choice(self) -> None:
        choice = self.tool_choice
        if choice in ("auto", "none"):
            return
        if not self.tools:
            raise ValueError("`tool_choice`: `tools` is empty")
        if isinstance(choice, NamedTool) and all(choice.name != tool.function.name for tool in self.tools):
            raise ValueError("`tool_choice`: no tool has this name")
        if self.grammar is not None or self.json_schema is not None:
            raise ValueError("`tool_choice`: a forced call leaves no room for another grammar")

    def _check_sizes(self) -> None:
        if any(len(text.encode()) > MAX_STOP_BYTES for text in self.stop):
            raise ValueError(f"`stop`: a stop string has more than {MAX_STOP_BYTES} bytes")
        check_origin(self.client, self.tenant)
        if self.supersede is not None and len(self.supersede.encode()) > MAX_SUPERSEDE_BYTES:
            raise ValueError(f"`supersede`: the key has more than {MAX_SUPERSEDE_BYTES} bytes")
        if self.session is not None and len(self.session.encode()) > MAX_SESSION_BYTES:
            raise ValueError(f"`session`: the name has more than {MAX_SESSION_BYTES} bytes")
        if self.cache_salt is not None and len(self.cache_salt.encode()) > MAX_SESSION_BYTES:
            raise ValueError(f"`cache_salt`: the text has more than {MAX_SESSION_BYTES} bytes")
        if self.grammar is not None and len(self.grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise ValueError(f"`grammar`: the grammar has more than {MAX_GRAMMAR_BYTES:,} bytes")
        check_free_form("json_schema", self.json_schema)
        check_free_form("template_args", self.template_args)
        check_tools(self.tools)


Part = TypeVar("Part", bound=GenerationOptions)


def part_of(params: GenerationOptions, kind: type[Part], seed: int) -> Part:
    """Return the members of params that a class above theirs has; an absent member gets the default of that class."""
    given = {name: value for name in kind.__struct_fields__ if (value := getattr(params, name)) is not UNSET}
    return kind(**given | {"seed": seed})


class CancelParams(Params, frozen=True, kw_only=True):
    """The request of this connection to cancel."""

    id: Annotated[Id, note("unknown ids are ignored")]


class NoParams(Params, frozen=True):
    """No members."""


class Empty(Struct, frozen=True):
    """A result without members."""
