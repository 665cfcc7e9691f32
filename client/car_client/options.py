"""The options of `infer` and `infer_stream`, for type checkers and editors."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from car_protocol.conversation import Message, ReasoningMode, Tool, ToolChoice
from car_protocol.infer import Lora, Priority, SupersedeScope
from car_protocol.sampling import Dry, Mirostat, Xtc


class Turn(TypedDict):
    """A turn of a conversation as plain data; `Message` is the same as an object, with tool calls and images."""

    role: str
    """`system`, `user`, `assistant`, `tool` or another one that the chat template has."""
    content: str | list[dict[str, str]]
    """A text, or parts: `{"type": "text", "text": ...}`, and of type `image` or `audio` with `"data": base64`."""


# Also plain dicts, whose type a checker infers as less than Turn if they stand in a variable.
Conversation = Sequence[Turn | Message | Mapping[str, Any]]


class InferOptions(TypedDict, total=False):
    """Options of a request; each may be left out. Ranges are the daemon's, which checks them."""

    suffix: str
    """The text after the gap that the answer fills; the text before is `prompt`; 1004 (`lacks: fill`) of models that
    cannot.
    """
    model: str
    """A name of `models/list`; the default model if absent."""
    max_tokens: int
    """The longest answer, cut to what fits the context; if absent what fits, or the model's `default_max_tokens`. 1 or
    more.
    """
    stop: list[str]
    """Texts of up to 256 bytes that end the answer before them: the earliest match, at equal start the longest. Up to
    16 entries.
    """
    ignore_eos: bool
    """Go on after an end token, up to `max_tokens`. Default False."""
    temperature: float
    """Randomness of the draw; 0 is greedy; 0.8 if absent, unless the model's entry has another. 0 to 5."""
    top_k: int
    """Keep this many of the likeliest tokens; 0 is off. 0 to 100,000, default 40."""
    top_p: float
    """Keep the likeliest tokens that together have this probability; 1 is off; 0.95 if absent, unless the model's entry
    has another. 0 to 1.
    """
    min_p: float
    """Drop tokens below this fraction of the likeliest one's probability; 0 is off. 0 to 1, default 0.05."""
    typical_p: float
    """Keep the tokens of most typical surprise that together have this probability; 1 is off. 0 to 1, default 1.0."""
    top_n_sigma: float
    """Keep tokens within this many standard deviations of the largest logit; -1 is off. -1 to 100, default -1.0."""
    xtc: Xtc | Mapping[str, Any]
    """Exclude top choices; off if absent."""
    dry: Dry | Mapping[str, Any]
    """Penalize runs of tokens that repeat; off if absent."""
    mirostat: Mirostat | Mapping[str, Any]
    """Keep the surprise of each token near a target, in place of all filters above; off if absent."""
    repeat_penalty: float
    """Divide the logits of recent tokens; 1 is off. 0.1 to 10, default 1.0."""
    repeat_last_n: int
    """Tokens that the penalties look back on; -1 is the whole context. -1 to 65,536, default 64."""
    presence_penalty: float
    """Subtracted once from the logit of each recent token, also of the prompt. -10 to 10, default 0.0."""
    frequency_penalty: float
    """Subtracted from the logit of a recent token for every occurrence, also in the prompt. -10 to 10, default 0.0."""
    logit_bias: dict[str, float]
    """Added to logits, by token id. Up to 1,024 entries."""
    n: int
    """Answers to this prompt, which is computed once: each takes a sequence and a place in the queue, and answer i has
    the seed `seed` + i. 1 to 8, default 1.
    """
    grammar: str
    """A grammar in llama.cpp's GBNF, up to 256 KiB, that the whole answer follows."""
    json_schema: dict[str, Any]
    """A JSON schema: the answer is valid under it, or calls one of the `tools`. An object's schema that lists
    `properties` and says nothing of others forbids others, unless `allOf`, or a `$ref` beside `properties`, is
    anywhere, or it is a branch beside `properties`. All its objects together list up to 3000 `properties`, 3000
    `required` and 64 `patternProperties`; so do the tools of a forced call. With `allOf`, or a `$ref` with something
    beside it, a schema has up to 16 `pattern`s. Not beside `grammar`.
    """
    lenient: bool
    """Leave out keywords of `json_schema` that cannot be enforced; the answer's `ignored` names them. Default False."""
    logprobs: int
    """Likeliest tokens that come with each token, by the model alone, before any sampler. 0 to 20."""
    tools: Sequence[Tool | Mapping[str, Any]]
    """Functions that the model may call, for templates that show tools. Up to 128 entries."""
    tool_choice: ToolChoice | Mapping[str, Any]
    """`required` and a named tool force a call by a grammar. Default 'auto'."""
    parallel_tool_calls: bool
    """False: the answer ends with its first call. Default True."""
    reasoning: ReasoningMode
    """Thoughts: `auto` (without another in the model's entry) returns them in `reasoning`; `keep` leaves them in
    `text`; `on` also has a model think that thinks only on request (1004, `lacks: thinking`, of others); `off` has
    it write none, or the fewest that its template allows.
    """
    reasoning_tokens: int
    """The most tokens of thoughts: a longer thought is closed there, and the answer follows. 0 or more."""
    continue_last: bool
    """Go on in the last message, an assistant's text, and return only what follows it. Default False."""
    template_args: dict[str, Any]
    """Further variables for the chat template."""
    lora: Sequence[Lora | Mapping[str, Any]]
    """The model's adapters to apply, each with its scale. Up to 8 entries."""
    parse_special: bool
    """Read special tokens that are written out in `prompt` and `suffix` as such. Default False."""
    seed: int
    """The sampler's seed; random if absent, 0 with `reproducible`; the answer has it. 0 or more."""
    reproducible: bool
    """The same request gives the same answer again, whatever else runs, at a cost; 1004 (`lacks: reproducible`) if that
    cannot be kept. Default False.
    """
    return_tokens: bool
    """Return the answer's token ids too. Default False."""
    priority: Priority
    """`throughput` gives way to the other class; after 30 s of waiting it counts as that class. Default
    'latency_critical'.
    """
    timeout_ms: int
    """Ms from arrival to the end of the answer: 1002 before the first token, an early end after it. 1 to 86,400,000."""
    queue_timeout_ms: int
    """Ms from arrival to the lease: 1002. 1 to 86,400,000."""
    wait: bool
    """False: refused (1001) unless a sequence is free now. Default True."""
    queue: bool
    """False: refused (1001) when the queue is full, whatever its policy. Default True."""
    supersede: str
    """A key of up to 128 bytes: a valid newer request of this connection with the same key cancels the older one
    (`data.superseded`) and takes its place in a full queue, unless it is held back.
    """
    supersede_scope: SupersedeScope
    """`program`: `supersede` counts on all connections of the process for the same tenant. Default 'connection'."""
    session: str
    """A name of up to 128 bytes; the replica that ran the session last is preferred."""
    cache_salt: str
    """A text of up to 128 bytes; prompts share prefixes with the same user and salt only."""
    cache_prompt: bool
    """False: neither uses cached prefixes nor leaves one. Default True."""
    device: str
    """`cpu`, `gpu` (any) or `gpu0` ...; 1004 (`lacks: device`) if no replica is there."""
    progress: bool
    """Send `infer_stream/progress` notifications, also for `infer`. Default False."""
    client: str
    """A label of up to 64 bytes, for fairness, usage and status; the process if absent."""
    tenant: str
    """Whom the process sends this for, a name of up to 64 bytes: a share within the process; requests without a name
    are of one tenant. Default ''.
    """
    person: str
    """The person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other processes and unknown
    persons.
    """
    _meta: dict[str, Any]
    """The caller's own; only `traceparent` is read."""
    traceparent: str
    """W3C trace context; goes into `_meta`, and from there into the daemon's log."""


class DecideOptions(TypedDict, total=False):
    """Options of `decide`; each may be left out."""

    model: str
    """A name of `models/list`; the default model if absent."""
    orders: int
    """2: a choice is read forwards and backwards, and both are averaged, which cancels a preference for the first
    option and costs a second reading; as the model's family does it if absent, else 1. 1 to 2.
    """
    reproducible: bool
    """The same question gives the same numbers to the last bit, whatever else the daemon does, at a cost. Default
    False.
    """
    lora: Sequence[Lora | Mapping[str, Any]]
    """As in `infer`. Up to 8 entries."""
    priority: Priority
    """As in `infer`. Default 'latency_critical'."""
    timeout_ms: int
    """Deadline of all answers in ms, from arrival: 1002. 1 to 86,400,000."""
    queue_timeout_ms: int
    """As in `infer`. 1 to 86,400,000."""
    wait: bool
    """As in `infer`. Default True."""
    queue: bool
    """As in `infer`. Default True."""
    session: str
    """As in `infer`."""
    cache_salt: str
    """As in `infer`."""
    device: str
    """As in `infer`."""
    progress: bool
    """Send `infer_stream/progress` notifications with the number of questions done. Default False."""
    client: str
    """A label of up to 64 bytes, for fairness, usage and status; the process if absent."""
    tenant: str
    """Whom the process sends this for, a name of up to 64 bytes: a share within the process; requests without a name
    are of one tenant. Default ''.
    """
    person: str
    """The person of `[people]` for whom a delegate sends it: a user of its own; 1009 for other processes and unknown
    persons.
    """
    traceparent: str
    """W3C trace context, for the daemon's log."""


class TokenizeOptions(TypedDict, total=False):
    """Options of `tokenize` and `count_tokens`; each may be left out."""

    model: str | None
    """A name of `models/list`; the default model if absent."""
    add_special: bool
    """With what the model puts around a text; goes with `text` only. Default False."""
    parse_special: bool
    """Special tokens in the text count; goes with `text` only. Default False."""
    tools: Sequence[Tool | Mapping[str, Any]]
    """As in `infer`. Up to 128 entries."""
    parallel_tool_calls: bool
    """As in `infer`. Default True."""
    continue_last: bool
    """As in `infer`. Default False."""
    template_args: dict[str, Any]
    """As in `infer`."""
    reasoning: ReasoningMode
    """As in `infer`."""
