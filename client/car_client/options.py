"""What `infer` and `infer_stream` accept, for type checkers."""

from collections.abc import Sequence
from typing import Any, TypedDict

from car_protocol.infer import Message, Priority


class Turn(TypedDict):
    """One turn of a conversation as plain data; content is text or parts `{"type": "text", "text": ...}`."""

    role: str
    content: str | list[dict[str, str]]


Conversation = Sequence[Turn | Message]


class InferOptions(TypedDict, total=False):
    """The members of car_protocol.infer.InferParams beside prompt, tokens and messages."""

    model: str
    max_tokens: int
    stop: list[str]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    parse_special: bool
    seed: int
    return_tokens: bool
    priority: Priority
    timeout_ms: int
    queue_timeout_ms: int
    wait: bool
    queue: bool
    supersede: str
    progress: bool
    client: str
    _meta: dict[str, Any]
