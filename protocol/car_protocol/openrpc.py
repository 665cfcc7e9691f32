"""The OpenRPC document, generated from the definitions that decode the requests."""

from typing import Any

import msgspec

from car_protocol import PROTOCOL
from car_protocol.errors import REASONS
from car_protocol.methods import METHODS, Method

_REF = "#/components/schemas/{name}"


def describe() -> dict[str, Any]:
    """Return the OpenRPC 1.3 document of every method and error."""
    kinds = [kind for method in METHODS.values() for kind in (method.params, method.result)]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    return {
        "openrpc": "1.3.2",
        "info": {"title": "card", "version": PROTOCOL},
        "methods": [_method(name, method) for name, method in METHODS.items()],
        "components": {
            "schemas": components,
            "errors": {reason: {"code": kind.code, "message": kind.message} for reason, kind in REASONS.items()},
        },
    }


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


def _params(kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([kind], ref_template=_REF)
    schema = components[kind.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "required": name in required, "schema": member}
        for name, member in schema.get("properties", {}).items()
    ]
