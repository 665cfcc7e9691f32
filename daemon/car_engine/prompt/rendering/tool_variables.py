"""Tools as variables of a template."""

import json
from typing import Any

import msgspec

from car_protocol.conversation import Tool


class Functions(list[Any]):
    """Functions: a list to templates that go through them, JSON to templates that write them as text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False, indent=4)

    def __add__(self, other: Any) -> Any:
        return str(self) + other if isinstance(other, str) else super().__add__(other)

    def __radd__(self, text: str) -> str:
        return text + str(self)


def tool_variables(tools: list[Tool], *, complete: bool) -> list[dict[str, Any]]:
    """Return tools as they were given, or `complete`: with an empty text or schema for each absent member."""
    given: list[dict[str, Any]] = msgspec.to_builtins(tools)
    return [tool | {"function": _completed(tool["function"])} for tool in given] if complete else given


def _completed(function: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, "required": []} | function.get("parameters", {})
    if isinstance(properties := parameters["properties"], dict):
        parameters["properties"] = {name: _described(schema) for name, schema in properties.items()}
    described = {"name": function["name"], "description": function.get("description", "")}
    return described | {"parameters": parameters}


def _described(schema: Any) -> Any:
    return schema | {"description": schema.get("description", "")} if isinstance(schema, dict) else schema
