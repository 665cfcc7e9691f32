"""Every call of the clients: its method, its params and the type of its result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from car_client.options import Conversation, InferOptions
from car_client.session import tell_nobody
from car_protocol.answer import Answer
from car_protocol.capacity import Capacity
from car_protocol.embed import Embeddings, Ranking
from car_protocol.envelope import Id
from car_protocol.infer import Empty
from car_protocol.models import LoadProgress, Model, Models
from car_protocol.status import Status
from car_protocol.text import Text, Tokens
from car_protocol.trace import TRACEPARENT

T = TypeVar("T")


class Ask(Struct, Generic[T], frozen=True):
    """A method with its params, the type that its result decodes to, and who hears how much of a model is loaded."""

    method: str
    params: dict[str, Any]
    result: type[T]
    loading: Callable[[LoadProgress], None] = tell_nobody


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
    return Ask(method, traced({**question, **options}), Answer)


def tokenize(text: str, model: str | None, add_special: bool, parse_special: bool) -> Ask[Tokens]:
    """The tokens of a text."""
    params = _given(text=text, model=model, add_special=add_special, parse_special=parse_special)
    return Ask("tokenize", params, Tokens)


def detokenize(tokens: Sequence[int], model: str | None, special: bool) -> Ask[Text]:
    """The text of tokens."""
    return Ask("detokenize", _given(tokens=_listed(tokens), model=model, special=special), Text)


def embed(texts: Sequence[str], model: str | None, normalize: bool, traceparent: str | None) -> Ask[Embeddings]:
    """A vector for every text."""
    params = _given(input=_listed(texts), model=model, normalize=normalize, traceparent=traceparent)
    return Ask("embed", traced(params), Embeddings)


def rerank(
    query: str, documents: Sequence[str], model: str | None, top_n: int | None, traceparent: str | None
) -> Ask[Ranking]:
    """Documents by how well they answer a query."""
    params = _given(query=query, documents=_listed(documents), model=model, top_n=top_n, traceparent=traceparent)
    return Ask("rerank", traced(params), Ranking)


def models() -> Ask[Models]:
    """What the daemon can serve."""
    return Ask("models/list", {}, Models)


def load_model(name: str, progress: Callable[[LoadProgress], None]) -> Ask[Model]:
    """A model that is served from then on; `progress` hears of it until it is."""
    return Ask("models/load", {"model": name, "progress": True}, Model, progress)


def status(subscribe: bool | None = None, interval_ms: int | None = None) -> Ask[Status]:
    """What the daemon is doing now, and whether to hear of it again and again."""
    return Ask("daemon/status", _given(subscribe=subscribe, interval_ms=interval_ms), Status)


def metrics() -> Ask[Text]:
    """The daemon's figures as Prometheus reads them."""
    return Ask("daemon/metrics", {}, Text)


def cancel(connection: int, request: Id) -> Ask[Empty]:
    """End a request of another connection."""
    return Ask("daemon/cancel", {"connection": connection, "id": request}, Empty)


def traced(params: Mapping[str, Any]) -> dict[str, Any]:
    """Move a trace to where the protocol has it, beside what the caller put there."""
    if TRACEPARENT not in params:
        return dict(params)
    others = {name: value for name, value in params.items() if name != TRACEPARENT}
    return {**others, "_meta": {**(params.get("_meta") or {}), TRACEPARENT: params[TRACEPARENT]}}


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _listed(items: Sequence[Any] | None) -> list[Any] | None:
    return None if items is None else list(items)
