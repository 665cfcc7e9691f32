"""Methods on texts: `tokenize`, `detokenize`, `embed` and `rerank`."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from car_protocol.answer import TokenId, Usage
from car_protocol.conversation import Messages, ReasoningMode, Tools, check_continued, check_free_form, check_tools
from car_protocol.meta import Label, Params, Tenant, check_origin, note


class TokenizeParams(Params, frozen=True, kw_only=True):
    """The text to cut into tokens, or the conversation to render and cut as `infer` does."""

    text: Annotated[str | None, note("either this or `messages`")] = None
    messages: Annotated[Messages | None, note("a conversation, whose tokens are the prompt's tokens of `infer`")] = None
    model: Annotated[str | None, note("a name of `models/list`; the default model if absent")] = None
    add_special: Annotated[bool, note("with what the model puts around a text; goes with `text` only")] = False
    parse_special: Annotated[bool, note("special tokens in the text count; goes with `text` only")] = False
    tools: Annotated[Tools, note("as in `infer`")] = field(default_factory=list)
    parallel_tool_calls: Annotated[bool, note("as in `infer`")] = True
    template_args: Annotated[dict[str, Any], note("as in `infer`")] = field(default_factory=dict)
    reasoning: Annotated[ReasoningMode | UnsetType, note("as in `infer`")] = UNSET
    continue_last: Annotated[bool, note("as in `infer`")] = False
    count_only: Annotated[bool, note("leave `tokens` out")] = False
    client: Label = None
    tenant: Tenant = ""

    def __post_init__(self) -> None:
        check_origin(self.client, self.tenant)
        if (self.text is None) == (self.messages is None):
            at_fault = "text" if self.text is None else "messages"
            raise ValueError(f"`{at_fault}`: give exactly one of text, messages")
        for name in ("add_special", "parse_special"):
            if getattr(self, name) and self.text is None:
                raise ValueError(f"`{name}`: goes with text only")
        for name in ("tools", "template_args"):
            if getattr(self, name) and self.messages is None:
                raise ValueError(f"`{name}`: goes with messages only")
        check_continued(self.messages, continues=self.continue_last)
        check_tools(self.tools)
        check_free_form("template_args", self.template_args)


class Tokens(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Token ids in order, and their number."""

    tokens: Annotated[
        list[int] | None,
        note("left out with `count_only`; numbers below 0 stand for the positions of images"),
    ] = None
    count: int


class DetokenizeParams(Params, frozen=True, kw_only=True):
    """The tokens to write out; with `special` control tokens too."""

    tokens: Annotated[list[TokenId], Meta(max_length=1_000_000)]
    model: str | None = None
    special: Annotated[bool, note("write control tokens too")] = False
    client: Label = None
    tenant: Tenant = ""

    def __post_init__(self) -> None:
        check_origin(self.client, self.tenant)


class Text(Struct, frozen=True):
    """Text; bytes that are not UTF-8 become U+FFFD."""

    text: Annotated[str, note("bytes that are not UTF-8 become U+FFFD")]


MAX_TEXTS = 256


class EmbedParams(Params, frozen=True, kw_only=True):
    """The texts to embed; vectors have length 1 unless `normalize` is false."""

    input: Annotated[
        list[str],
        Meta(min_length=1, max_length=MAX_TEXTS),
        note("each of at most 512 tokens if the model also generates, else 2,048, and at most its trained context"),
    ]
    model: str | None = None
    normalize: Annotated[bool, note("vectors have length 1")] = True
    truncate: Annotated[bool, note("of a longer text its beginning counts; else such a text is refused")] = False
    client: Label = None
    tenant: Tenant = ""

    def __post_init__(self) -> None:
        check_origin(self.client, self.tenant)


class Embeddings(Struct, frozen=True):
    """A vector for every text, in their order."""

    embeddings: Annotated[list[list[float]], note("a vector for every text, in their order")]
    model: str
    usage: Usage


class RerankParams(Params, frozen=True, kw_only=True):
    """A query, and the documents to order; `top_n` keeps the best."""

    query: str
    documents: Annotated[
        list[str], Meta(min_length=1, max_length=MAX_TEXTS), note("each with the query as long as a text of `embed`")
    ]
    model: str | None = None
    top_n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TEXTS)] | None,
        note("the number of best documents to return; all if absent"),
    ] = None
    client: Label = None
    tenant: Tenant = ""

    def __post_init__(self) -> None:
        check_origin(self.client, self.tenant)


class Ranked(Struct, frozen=True):
    """One document by its place in the request, and how well it fits: higher is better."""

    index: Annotated[int, note("of the document in the request")]
    score: Annotated[float, note("the model's own; higher is better")]


class Ranking(Struct, frozen=True):
    """The documents, the best first."""

    results: Annotated[list[Ranked], note("the best first")]
    model: str
    usage: Usage
