"""`infer`, `infer_stream` and `$/cancelRequest`: the request object."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from car_protocol.conversation import Message, NamedTool, ReasoningMode, ToolChoice, Tools
from car_protocol.depth import check_depth
from car_protocol.envelope import Id
from car_protocol.meta import Params
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

    name: Annotated[str, Meta(max_length=128)]
    scale: Annotated[float, Meta(ge=-10, le=10)] = 1.0


class InferParams(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `infer` and `infer_stream` take: exactly one of prompt, tokens and messages, and how to answer."""

    prompt: str | None = None
    tokens: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=512)] | None = None
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1, description="256, or what fits")] | None = None
    stop: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)] = field(default_factory=list)
    parse_special: bool = False
    seed: Annotated[int, Meta(ge=0, le=2**32 - 2, description="random where absent")] | None = None
    grammar: Annotated[str, Meta(description="GBNF, up to 256 KiB")] | None = None
    json_schema: dict[str, Any] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    return_tokens: bool = False
    tools: Tools = field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    reasoning: ReasoningMode = "auto"
    template_args: dict[str, Any] = field(default_factory=dict)
    lora: Annotated[list[Lora], Meta(max_length=8)] = field(default_factory=list)
    priority: Priority = "latency_critical"
    timeout_ms: Milliseconds | None = None
    queue_timeout_ms: Milliseconds | None = None
    wait: bool = True
    queue: bool = True
    supersede: str | None = None
    session: str | None = None
    cache_prompt: bool = True
    device: Annotated[str, Meta(max_length=64)] | None = None
    progress: bool = False
    client: str | None = None
    # As in Params: of two bases with members a Struct can have only one.
    meta: dict[str, Raw] = field(name="_meta", default_factory=dict)

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
        check_depth("json_schema", self.json_schema)
        check_depth("template_args", self.template_args)
        for tool in self.tools:
            check_depth("tools", tool.function.parameters)


class CancelParams(Params, frozen=True, kw_only=True):
    """Which request of this connection to cancel."""

    id: Id


class NoParams(Params, frozen=True):
    """No members."""


class Empty(Struct, frozen=True):
    """A result without members."""
