"""A JSON schema's constraints on a value, in a few words."""

import json
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
# Definitions that have a table of their own, and where it is.
LINKS = {
    "Answer": "[the answer object](#the-answer-object)",
    "Capacity": "[the capacity object](#the-capacity-object)",
    "Limits": "[the limits](#the-limits)",
    "DeviceStatus": "[a GPU](#a-gpu-of-a-model)",
    "ToolCall": "[a tool call](#a-tool-call)",
    "EngineStatus": "[an engine's entry](#an-engines-entry)",
    "Status": "[the status object](#the-status-object)",
    "InferParams": "[the request object](#the-request-object)",
    "Model": "[a model's entry](#a-models-entry)",
    "ModelDetails": "[what is in a model's file](#what-is-in-a-models-file)",
}
_REF = "#/components/schemas/"
# The largest number of a 32-bit integer; a bound from there on says only that there is one.
_ENDLESS = 2**31 - 1
_PLAIN = {"string": "text", "boolean": "bool", "integer": "integer", "number": "number", "null": "null"}


def definition(schema: Schema) -> str | None:
    """Return the name of the definition that a schema refers to."""
    reference = schema.get("$ref")
    return None if reference is None else str(reference).removeprefix(_REF)


def alternatives(schema: Schema) -> list[Schema]:
    """Return what a value may be, null last."""
    found: list[Schema] = list(schema.get("anyOf", [schema]))
    return sorted(found, key=lambda each: each.get("type") == "null")


def in_words(schema: Schema) -> str:
    """Return what a value may be."""
    return " or ".join(_one(each) for each in alternatives(schema))


def note_of(schema: Schema) -> str:
    """Return what the definition says of a member, without a stop at its end."""
    notes = [each["description"] for each in (schema, *alternatives(schema)) if "description" in each]
    return str(notes[0]) if notes else ""


def figure(value: float) -> str:
    """Return a number for people."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def as_json(value: object) -> str:
    """Return a default as it would be sent."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _one(schema: Schema) -> str:
    name = definition(schema)
    if name is not None:
        return LINKS.get(name, "object")
    if "enum" in schema:
        return ", ".join(as_json(each).replace('"', "") for each in schema["enum"])
    kind = schema.get("type", "")
    return _KINDS.get(kind, _plain)(schema)


def _plain(schema: Schema) -> str:
    return _PLAIN.get(schema.get("type", ""), "anything")


def _number(schema: Schema) -> str:
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", _ENDLESS)
    if low is None:
        return _plain(schema)
    return f"{figure(low)} to {figure(high)}" if high < _ENDLESS else f"{figure(low)} or more"


def _text(schema: Schema) -> str:
    low, high = schema.get("minLength"), schema.get("maxLength")
    if high is None:
        return "text"
    return f"text of {figure(low)} to {figure(high)}" if low else f"text of up to {figure(high)}"


def _array(schema: Schema) -> str:
    items = f"[{in_words(schema['items'])}]"
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if high is None:
        return f"{items}, not empty" if low else items
    return f"{items}, {figure(low)} to {figure(high)}" if low else f"{items}, up to {figure(high)}"


def _object(schema: Schema) -> str:
    values = schema.get("additionalProperties") or {}
    inner = f"{{text: {in_words(values)}}}" if values else "object"
    return f"{inner}, up to {figure(schema['maxProperties'])}" if "maxProperties" in schema else inner


_KINDS: dict[str, Callable[[Schema], str]] = {
    "integer": _number,
    "number": _number,
    "string": _text,
    "array": _array,
    "object": _object,
}
