"""The table of methods: their params, results and notes, and the OpenRPC document that is generated from it."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from car_protocol import PROTOCOL
from car_protocol.answer import Answer, Chunk, Progress
from car_protocol.capacity import Capacity, CapacityParams
from car_protocol.decide import DecideParams, Decision
from car_protocol.errors import REASONS
from car_protocol.examples import EXAMPLES
from car_protocol.infer import CancelParams, Empty, InferParams, NoParams
from car_protocol.meta import Params
from car_protocol.models import LoadParams, LoadProgress, Model, ModelDetails, Models, ShowParams
from car_protocol.status import CancelOtherParams, Drained, DrainParams, Status, StatusParams, Why, WhyParams
from car_protocol.text import (
    DetokenizeParams,
    Embeddings,
    EmbedParams,
    Ranking,
    RerankParams,
    Text,
    TokenizeParams,
    Tokens,
)
from car_protocol.usage import UsageParams, UsageReport


class Method(Struct, frozen=True):
    """One method of the contract; a streaming one may not stand in a batch, inference counts in the totals.

    One that waits is answered later and is in flight until then, the others are answered at once. The summary is one
    sentence; `note` has further facts for callers.
    """

    summary: str
    params: type[Params] | type[InferParams]
    result: Any
    streams: bool = False
    infers: bool = False
    waits: bool = False
    note: str = ""


METHODS: dict[str, Method] = {
    "inference/capacity": Method(
        "How many requests run at once, and why.", CapacityParams, Capacity, note="At once, always."
    ),
    "infer": Method("Answer a prompt in one piece.", InferParams, Answer, infers=True, waits=True),
    "infer_stream": Method(
        "Answer a prompt piece by piece.",
        InferParams,
        Answer,
        streams=True,
        infers=True,
        waits=True,
        note="`infer_stream/chunk` notifications come first, and the answer has `chunks` in place of `text`.",
    ),
    "$/cancelRequest": Method(
        "Cancel a request of this connection.",
        CancelParams,
        Empty,
        note="That request ends with -32800. Works as a notification too.",
    ),
    "embed": Method(
        "Turn texts into vectors.",
        EmbedParams,
        Embeddings,
        infers=True,
        waits=True,
        note="Pooled as the model says, else by the mean. Takes a lease like `infer`.",
    ),
    "rerank": Method(
        "Order documents by how well they answer a query.", RerankParams, Ranking, infers=True, waits=True
    ),
    "decide": Method(
        "Answer typed questions about one state by probabilities.",
        DecideParams,
        Decision,
        infers=True,
        waits=True,
        note="Nothing is written: the probabilities are read at the labels of the options. 1004 (`lacks: decisions`) "
        "for models that cannot be read so.",
    ),
    "tokenize": Method("Cut a text or a conversation into the model's tokens.", TokenizeParams, Tokens, waits=True),
    "detokenize": Method("Write tokens out as text.", DetokenizeParams, Text, waits=True),
    "models/list": Method("List what the daemon can serve.", NoParams, Models, waits=True),
    "models/show": Method("Look into a model's file.", ShowParams, ModelDetails, waits=True, note="It loads nothing."),
    "models/load": Method(
        "Load a model.",
        LoadParams,
        Model,
        waits=True,
        note="Answers once it is served; 1004 if it cannot be served. `progress` sends `models/progress` "
        "meanwhile. For administrators.",
    ),
    "models/unload": Method(
        "Unload a model once it has finished its work.",
        LoadParams,
        Model,
        waits=True,
        note="Answers once it is gone. For administrators.",
    ),
    "daemon/status": Method("What the daemon is doing now.", StatusParams, Status),
    "daemon/cancel": Method(
        "Cancel another connection's request.",
        CancelOtherParams,
        Empty,
        note="A request of the same user; root may cancel any request.",
    ),
    "daemon/drain": Method(
        "Finish what runs and waits, then end.",
        DrainParams,
        Drained,
        waits=True,
        note="Admits nothing from now on (1003), and refuses the rest at the timeout. Cancelling ends the wait, not "
        "the drain. For administrators.",
    ),
    "daemon/reload": Method(
        "Read the configuration again.",
        NoParams,
        Empty,
        note="A file that cannot be used changes nothing; -32602 names the key in `data.param`. For administrators.",
    ),
    "daemon/metrics": Method(
        "What is counted, as Prometheus text.",
        NoParams,
        Text,
        note="Requests by outcome, queue, capacity, engines, cache, and histograms of waits.",
    ),
    "daemon/why": Method(
        "Why tokens of the last prompts were computed again.",
        WhyParams,
        Why,
        note="Of the caller's own requests for answers alone; an unknown id has none.",
    ),
    "daemon/usage": Method(
        "What requests took, by day, person, app and model.",
        UsageParams,
        UsageReport,
        waits=True,
        note="The caller's own rows, for administrators all. The ledger begins with the first person.",
    ),
    "rpc.discover": Method("This table as an OpenRPC document.", NoParams, dict[str, Any]),
}
CHUNK = "infer_stream/chunk"
PROGRESS = "infer_stream/progress"
MODELS_PROGRESS = "models/progress"
CAPACITY_CHANGED = "inference/capacity_changed"
STATUS_CHANGED = "daemon/status_changed"
# What the daemon sends by itself, each on request only, with the type of its params.
NOTIFICATIONS: dict[str, type[Struct]] = {
    CHUNK: Chunk,
    PROGRESS: Progress,
    MODELS_PROGRESS: LoadProgress,
    CAPACITY_CHANGED: Capacity,
    STATUS_CHANGED: Status,
}


_REF = "#/components/schemas/{name}"


def describe() -> dict[str, Any]:
    """Return the OpenRPC document of every method, notification and error."""
    kinds = [kind for method in METHODS.values() for kind in (method.params, method.result)]
    return {
        "openrpc": "1.2.6",
        "info": {"title": "card", "version": PROTOCOL},
        "methods": [_method(name, method) for name, method in METHODS.items()],
        # OpenRPC has no word for what a server sends by itself.
        "x-notifications": [
            {"name": name, "params": {"$ref": _REF.format(name=kind.__name__)}} for name, kind in NOTIFICATIONS.items()
        ],
        "components": {
            "schemas": schemas([*kinds, *NOTIFICATIONS.values()]),
            "errors": {reason: {"code": kind.code, "message": kind.message} for reason, kind in REASONS.items()},
        },
    }


def schemas(kinds: Iterable[Any]) -> dict[str, Any]:
    """Return the JSON schemas of definitions by name; a member that is left out in place of None is never null."""
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    for member in _objects(components):
        member.pop("discriminator", None)  # OpenAPI's; validators of JSON schema refuse it
        if isinstance(pattern := member.get("pattern"), str):
            # JavaScript's expressions, which JSON schema has, know no other anchors; its `$` is the end alone.
            member["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
        if isinstance(text := member.get("description"), str):
            # msgspec 0.22 keeps a docstring's indentation, 0.23 does not: one line says the same with every version.
            member["description"] = " ".join(text.split())
    for kind in _definitions(Struct):
        if kind.__struct_config__.omit_defaults and kind.__name__ in components:
            properties = components[kind.__name__]["properties"]
            properties.update((name, _without_null(member)) for name, member in properties.items())
    return components


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a value, the outermost first."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(each)


def _definitions(base: type[Struct]) -> Iterator[type[Struct]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("car_protocol."):
            yield kind
            yield from _definitions(kind)


def _without_null(member: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a member without its default, if that is null, and without null itself."""
    if member.get("default", "") is not None:
        return member
    kept = [each for each in member["anyOf"] if each != {"type": "null"}]
    rest = {name: value for name, value in member.items() if name not in ("anyOf", "default")}
    return {**kept[0], **rest} if len(kept) == 1 else {"anyOf": kept, **rest}


def _method(name: str, method: Method) -> dict[str, Any]:
    (result,), _ = msgspec.json.schema_components([method.result], ref_template=_REF)
    example = EXAMPLES[name]
    return {
        "name": name,
        "summary": method.summary,
        "description": " ".join(filter(None, (method.summary, method.note))),
        "paramStructure": "by-name",
        "params": _params(method.params),
        # The members above as one object, which OpenRPC does not name.
        "x-params": {"$ref": _REF.format(name=method.params.__name__)},
        "result": {"name": "result", "schema": result},
        "examples": [
            {
                "name": name,
                "params": [{"name": member, "value": value} for member, value in example.params.items()],
                "result": {"name": "result", "value": example.result},
            }
        ],
        # False for a method that is answered at once and counts towards no bound of a connection.
        "x-waits": method.waits,
    }


def _params(kind: type[Struct]) -> list[dict[str, Any]]:
    schema = schemas([kind])[kind.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "required": name in required, "schema": member}
        for name, member in schema.get("properties", {}).items()
    ]
