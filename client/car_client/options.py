"""What `infer` and `infer_stream` accept, for type checkers."""

from collections.abc import Sequence
from typing import Any, TypedDict

from car_protocol.conversation import Message, ReasoningMode, Tool, ToolChoice
from car_protocol.infer import Lora, Priority
from car_protocol.sampling import Dry, Mirostat, Xtc


class Turn(TypedDict):
    """One turn of a conversation as plain data; content is text or parts `{"type": "text", "text": ...}`."""

    role: str
    content: str | list[dict[str, str]]


Conversation = Sequence[Turn | Message]


class InferOptions(TypedDict, total=False):
    """The members of car_protocol.infer.InferParams beside prompt, tokens and messages, and the caller's trace."""

    model: str
    max_tokens: int
    stop: list[str]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc: Xtc
    dry: Dry
    mirostat: Mirostat
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[str, float]
    grammar: str
    json_schema: dict[str, Any]
    logprobs: int
    tools: list[Tool]
    tool_choice: ToolChoice
    reasoning: ReasoningMode
    template_args: dict[str, Any]
    lora: list[Lora]
    parse_special: bool
    seed: int
    return_tokens: bool
    priority: Priority
    timeout_ms: int
    queue_timeout_ms: int
    wait: bool
    queue: bool
    supersede: str
    session: str
    cache_prompt: bool
    device: str
    progress: bool
    client: str
    _meta: dict[str, Any]
    # W3C trace context; goes into `_meta`, and from there into the daemon's log.
    traceparent: str
