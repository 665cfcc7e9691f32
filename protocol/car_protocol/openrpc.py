"""The OpenRPC document, generated from the definitions that decode the requests."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from car_protocol import PROTOCOL
from car_protocol.errors import REASONS
from car_protocol.methods import METHODS, Method

_REF = "#/components/schemas/{name}"


def describe() -> dict[str, Any]:
    """Return the OpenRPC 1.3 document of every method and error."""
    return {
        "openrpc": "1.3.2",
        "info": {"title": "card", "version": PROTOCOL},
        "methods": [_method(name, method) for name, method in METHODS.items()],
        "components": {
            "schemas": schemas(kind for method in METHODS.values() for kind in (method.params, method.result)),
            "errors": {reason: {"code": kind.code, "message": kind.message} for reason, kind in REASONS.items()},
        },
    }


def schemas(kinds: Iterable[Any]) -> dict[str, Any]:
    """Return the JSON schemas of definitions by name; a member that is left out in place of None is never null."""
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    for kind in _definitions(Struct):
        if kind.__struct_config__.omit_defaults and kind.__name__ in components:
            properties = components[kind.__name__]["properties"]
            properties.update((name, _without_null(member)) for name, member in properties.items())
    return components


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
    return {
        "name": name,
        "summary": method.summary,
        "description": " ".join(filter(None, (method.summary, method.note))),
        "paramStructure": "by-name",
        "params": _params(method.params),
        "result": {"name": "result", "schema": result},
    }


def _params(kind: type[Struct]) -> list[dict[str, Any]]:
    schema = schemas([kind])[kind.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "required": name in required, "schema": member}
        for name, member in schema.get("properties", {}).items()
    ]
