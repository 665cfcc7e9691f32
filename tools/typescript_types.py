"""Write the types of the TypeScript client from the OpenRPC document: `python -m tools.typescript_types`."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from car_protocol.methods import describe

TARGET = Path(__file__).parents[1] / "client" / "typescript" / "src" / "protocol.ts"
_HEAD = "// The protocol's objects: `make docs` writes this file from the definitions that the daemon decodes with.\n"
# The bounds that a client keeps before the daemon has named its own.
_BOUNDS = {
    "max_frame_bytes": "The longest frame in bytes, until the daemon names its own bound.",
    "max_in_flight": "The most requests of a connection in flight, until the daemon names its own bound.",
}
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def module(document: dict[str, Any]) -> str:
    """Return the source of `protocol.ts` for an OpenRPC document."""
    parts = [_HEAD, *(_declared(name, schema) for name, schema in document["components"]["schemas"].items())]
    parts.append(_table("Methods", "The params and the result of each method.", _methods(document["methods"])))
    parts.append(
        _table(
            "Notifications",
            "The params of what the daemon sends by itself.",
            _notifications(document["x-notifications"]),
        )
    )
    errors = document["components"]["errors"]
    reasons = "".join(f"  {name}: {kind['code']},\n" for name, kind in errors.items())
    parts.append(f"/** The code of each error, by `data.reason`. */\nexport const CODES = {{\n{reasons}}} as const;\n")
    at_once = "".join(f'  "{method["name"]}",\n' for method in document["methods"] if not method["x-waits"])
    parts.append(
        "/** The methods that the daemon answers at once: they count towards no bound of a connection. */\n"
        f"export const AT_ONCE: readonly string[] = [\n{at_once}];\n"
    )
    limits = document["components"]["schemas"]["Limits"]["properties"]
    for name, text in _BOUNDS.items():
        parts.append(f"/** {text} */\nexport const {name.upper()} = {limits[name]['default']};\n")
    return "\n".join(parts)


def _declared(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    members = "".join(
        f"{_comment(member, '  ')}  {_key(key)}{'' if key in required else '?'}: {_type(member)};\n"
        for key, member in schema.get("properties", {}).items()
    )
    return f"{_comment(schema, '')}export interface {name} {{\n{members}}}\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        item = _type(schema.get("items", {}))
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object":
        return f"Record<string, {_type(schema.get('additionalProperties') or {})}>"
    return _PLAIN[kind] if kind else "unknown"


def _methods(methods: list[dict[str, Any]]) -> Iterator[str]:
    for method in methods:
        types = f"{{ params: {_type(method['x-params'])}; result: {_type(method['result']['schema'])} }}"
        yield f'{_comment(method, "  ")}  "{method["name"]}": {types};\n'


def _notifications(notifications: list[dict[str, Any]]) -> Iterator[str]:
    for each in notifications:
        yield f'  "{each["name"]}": {_type(each["params"])};\n'


def _table(name: str, summary: str, rows: Iterator[str]) -> str:
    return f"/** {summary} */\nexport interface {name} {{\n{''.join(rows)}}}\n"


def _key(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)


def _comment(schema: dict[str, Any], indent: str) -> str:
    """Return the description and the default as a comment of lines of at most 100 characters."""
    text = schema.get("description", "").strip()
    if schema.get("default") not in (None, {}, []):
        described = f"{text.rstrip('.')}. " if text else ""
        text = f"{described}Default {json.dumps(schema['default'])}."
    if not text:
        return ""
    lines = textwrap.wrap(text.replace("*/", "* /"), 100 - len(indent) - 3)
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    return "".join([f"{indent}/**\n", *(f"{indent} * {line}\n" for line in lines), f"{indent} */\n"])


if __name__ == "__main__":
    TARGET.write_text(module(describe()), encoding="utf-8")
