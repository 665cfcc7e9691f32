"""Every call of the clients: its method, its params and the type of its result."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from car_client.options import Conversation, InferOptions
from car_protocol.answer import Answer
from car_protocol.capacity import Capacity
from car_protocol.models import Models
from car_protocol.status import Status
from car_protocol.text import Text, Tokens

T = TypeVar("T")


class Ask(Struct, Generic[T], frozen=True):
    """A method with its params, and the type that its result decodes to."""

    method: str
    params: dict[str, Any]
    result: type[T]


def capacity(model: str | None, subscribe: bool | None = None) -> Ask[Capacity]:
    """How many requests run at once."""
    return Ask("inference/capacity", _given(model=model, subscribe=subscribe), Capacity)


def infer(
    method: str,
    prompt: str | None,
    messages: Conversation | None,
    tokens: Sequence[int] | None,
    options: InferOptions,
) -> Ask[Answer]:
    """An answer, whole (`infer`) or in pieces (`infer_stream`)."""
    question = _given(prompt=prompt, messages=_listed(messages), tokens=_listed(tokens))
    return Ask(method, {**question, **options}, Answer)


def tokenize(text: str, model: str | None, add_special: bool, parse_special: bool) -> Ask[Tokens]:
    """The tokens of a text."""
    params = _given(text=text, model=model, add_special=add_special, parse_special=parse_special)
    return Ask("tokenize", params, Tokens)


def detokenize(tokens: Sequence[int], model: str | None, special: bool) -> Ask[Text]:
    """The text of tokens."""
    return Ask("detokenize", _given(tokens=_listed(tokens), model=model, special=special), Text)


def models() -> Ask[Models]:
    """What the daemon can serve."""
    return Ask("models/list", {}, Models)


def status() -> Ask[Status]:
    """What the daemon is doing now."""
    return Ask("daemon/status", {}, Status)


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _listed(items: Sequence[Any] | None) -> list[Any] | None:
    return None if items is None else list(items)
