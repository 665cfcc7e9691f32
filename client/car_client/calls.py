"""The calls of both clients: method, params, the type of the result, and whether a call may be sent twice."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from car_client.options import Conversation, DecideOptions, InferOptions, TokenizeOptions
from car_client.results import Answer, Capacity, Decision, Model, ModelDetails, Status
from car_protocol.decide import Question
from car_protocol.envelope import Id
from car_protocol.infer import Empty
from car_protocol.meta import TRACEPARENT
from car_protocol.models import LoadProgress, Models
from car_protocol.status import Drained, Why
from car_protocol.text import Embeddings, Ranking, Text

T = TypeVar("T")
Progress = Callable[[LoadProgress], None]


def ignore_progress(_: LoadProgress) -> None:
    """Stand in for a callback if no progress was requested."""


class CallSpec(Struct, Generic[T], frozen=True):
    """A method with its params and the type of its result; a `repeatable` one may be sent again after a failure."""

    method: str
    params: dict[str, Any]
    result: type[T]
    repeatable: bool = False
    on_progress: Progress = ignore_progress


class TokenizeResult(Struct, frozen=True):
    """Token ids in order; their number beside them stays unread, because daemons of version 0.2 send none."""

    tokens: list[int]


class TokenCount(Struct, frozen=True):
    """The number of tokens."""

    count: int


def capacity() -> CallSpec[Capacity]:
    """The number of requests that run at once."""
    return CallSpec("inference/capacity", {}, Capacity, repeatable=True)


def infer(
    method: str,
    prompt: str | None,
    messages: Conversation | None,
    tokens: Sequence[int] | None,
    options: InferOptions,
) -> CallSpec[Answer]:
    """An answer, whole (`infer`) or in pieces (`infer_stream`).

    A request that must not wait is refused once and for all, and one that supersedes others could supersede a newer one
    when it is sent again.
    """
    lists = {"tools": options.get("tools"), "lora": options.get("lora"), "messages": messages, "tokens": tokens}
    question = _given(prompt=prompt, **{name: _listed(items) for name, items in lists.items()})
    repeatable = options.get("wait", True) and options.get("queue", True) and "supersede" not in options
    return CallSpec(method, traced({**options, **question}), Answer, repeatable)


def decide(state: Any, questions: Sequence[Question | Mapping[str, Any]], options: DecideOptions) -> CallSpec[Decision]:
    """The answers to questions about a state; raises TypeError and ValueError for what JSON has no form for."""
    asked = list(questions)
    try:
        # msgspec writes bytes as another text, and NaN as null.
        json.dumps([state, asked], default=_plain, allow_nan=False)
    except RecursionError:
        raise ValueError("the state nests too deeply: send its inner part as a text") from None
    members = {**options, "questions": asked, "lora": _listed(options.get("lora"))}
    repeatable = options.get("wait", True) and options.get("queue", True)
    return CallSpec("decide", traced({**_given(**members), "state": state}), Decision, repeatable)


def _plain(part: object) -> object:
    """Return a part of a state or question as data that JSON has, its own parts as they are; raises TypeError."""
    if isinstance(part, bytes | bytearray | memoryview | set | frozenset):
        raise TypeError(f"JSON has no {type(part).__name__}: send a text or a list in its place")
    if isinstance(part, Struct):
        members = {field.encode_name: getattr(part, field.name) for field in fields(part)}
        return {name: value for name, value in members.items() if value is not msgspec.UNSET}
    return msgspec.to_builtins(part)


def tokenize(text: str | None, messages: Conversation | None, options: TokenizeOptions) -> CallSpec[TokenizeResult]:
    """The tokens of a text or of a conversation."""
    return CallSpec("tokenize", _to_tokenize(text, messages, options), TokenizeResult, repeatable=True)


def count_tokens(text: str | None, messages: Conversation | None, options: TokenizeOptions) -> CallSpec[TokenCount]:
    """The number of tokens of a text or of a conversation."""
    params = _to_tokenize(text, messages, options) | {"count_only": True}
    return CallSpec("tokenize", params, TokenCount, repeatable=True)


def detokenize(tokens: Sequence[int], model: str | None, special: bool) -> CallSpec[Text]:
    """The text of tokens."""
    return CallSpec("detokenize", _given(tokens=_listed(tokens), model=model, special=special), Text, repeatable=True)


def embed(
    texts: Sequence[str], model: str | None, normalize: bool, truncate: bool, traceparent: str | None
) -> CallSpec[Embeddings]:
    """A vector for every text."""
    params = _given(
        input=_listed(texts), model=model, normalize=normalize, truncate=truncate or None, traceparent=traceparent
    )
    return CallSpec("embed", traced(params), Embeddings, repeatable=True)


def rerank(
    query: str, documents: Sequence[str], model: str | None, top_n: int | None, traceparent: str | None
) -> CallSpec[Ranking]:
    """Documents by how well they answer a query."""
    params = _given(query=query, documents=_listed(documents), model=model, top_n=top_n, traceparent=traceparent)
    return CallSpec("rerank", traced(params), Ranking, repeatable=True)


def models() -> CallSpec[Models]:
    """The models that the daemon can serve."""
    return CallSpec("models/list", {}, Models, repeatable=True)


def show_model(name: str) -> CallSpec[ModelDetails]:
    """A model's entry with its file."""
    return CallSpec("models/show", {"model": name}, ModelDetails, repeatable=True)


def load_model(name: str, progress: Progress | None) -> CallSpec[Model]:
    """A model that is served from then on."""
    params = _given(model=name, progress=True if progress else None)
    return CallSpec("models/load", params, Model, on_progress=progress or ignore_progress)


def unload_model(name: str) -> CallSpec[Model]:
    """A model that leaves memory."""
    return CallSpec("models/unload", {"model": name}, Model)


def status() -> CallSpec[Status]:
    """A snapshot of the daemon's work."""
    return CallSpec("daemon/status", {}, Status, repeatable=True)


def subscribe(interval_ms: int | None) -> CallSpec[Status]:
    """A snapshot now and again every `interval_ms`; None ends that. Bound to its connection: never sent again."""
    return CallSpec("daemon/status", _given(subscribe=interval_ms is not None, interval_ms=interval_ms), Status)


def metrics() -> CallSpec[Text]:
    """The daemon's figures as Prometheus reads them."""
    return CallSpec("daemon/metrics", {}, Text, repeatable=True)


def why(request: Id | None) -> CallSpec[Why]:
    """The reasons why tokens of the last prompts were computed again."""
    return CallSpec("daemon/why", _given(id=request), Why, repeatable=True)


def cancel(connection: int, request: Id) -> CallSpec[Empty]:
    """The end of a request of another connection."""
    return CallSpec("daemon/cancel", {"connection": connection, "id": request}, Empty)


def drain(timeout_ms: int | None) -> CallSpec[Drained]:
    """The end of the daemon, once it has finished its work."""
    return CallSpec("daemon/drain", _given(timeout_ms=timeout_ms), Drained)


def reload() -> CallSpec[Empty]:
    """The configuration, read again."""
    return CallSpec("daemon/reload", {}, Empty)


def raw(method: str, params: Mapping[str, Any] | None) -> CallSpec[Any]:
    """Any method, its result as plain data."""
    return CallSpec(method, dict(params or {}), object)


def traced(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params with `traceparent` moved into `_meta`, beside the caller's own members there."""
    if TRACEPARENT not in params:
        return dict(params)
    others = {name: value for name, value in params.items() if name != TRACEPARENT}
    return {**others, "_meta": {**(params.get("_meta") or {}), TRACEPARENT: params[TRACEPARENT]}}


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _to_tokenize(text: str | None, messages: Conversation | None, options: TokenizeOptions) -> dict[str, Any]:
    tools = _listed(options.get("tools"))
    return _given(**{**options, "text": text, "messages": _listed(messages), "tools": tools})


def _listed(items: Sequence[Any] | None) -> list[Any] | None:
    return None if items is None else list(items)
