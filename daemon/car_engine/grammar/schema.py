"""JSON schemas as grammars: objects closed by default, whitespace bounded."""

from collections.abc import Iterator
from typing import Any

import msgspec

# Bounded, because some samplers would write whitespace without end.
_WHITESPACE = r"( |\n[ \t]{0,20})?"
# With one of these beside them, or allOf anywhere, `properties` do not list all members.
_OPEN = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "anyOf", "oneOf", "$ref", "if"}
)
# Beyond these the library takes seconds to minutes, because it compares every pattern with all others.
_MEMBERS_MAX = 3000
_PATTERNS_MAX = 64
# Each pattern that a text has to match besides others doubles time and memory.
_MERGED_PATTERNS_MAX = 16
TOO_WIDE = (
    f"the limits are {_MEMBERS_MAX:,} properties, {_MEMBERS_MAX:,} required, {_PATTERNS_MAX} patternProperties, and "
    f"{_MERGED_PATTERNS_MAX} patterns with allOf or beside a $ref"
)
# Values under DATA are not schemas; schemas under _BRANCHES apply beside the one around them; under BY_NAME each name
# has a schema.
DATA = frozenset({"const", "enum", "default", "examples"})
_BRANCHES = frozenset({"anyOf", "oneOf", "if", "then", "else"})
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def is_too_wide(schemas: list[dict[str, Any]]) -> bool:
    """Return whether schemas list too many members of objects, or patterns, to be compiled in time."""
    members = max(_count(schemas, "properties"), _count(schemas, "required"))
    if members > _MEMBERS_MAX or _count(schemas, "patternProperties") > _PATTERNS_MAX:
        return True
    for schema in schemas:
        inner = list(_schemas(schema))
        # Several of them may apply to the same text.
        merges = any("allOf" in each or ("$ref" in each and len(each) > 1) for each in inner)
        if merges and sum("pattern" in each for each in inner) > _MERGED_PATTERNS_MAX:
            return True
    return False


def as_lark(schema: dict[str, Any], *, lenient: bool = False) -> str:
    """Return a grammar whose texts are JSON that is valid under the schema, `lenient` under what is supported of it."""
    return "start: " + embedded(closed(schema), lenient=lenient)


def embedded(schema: dict[str, Any], *, lenient: bool = False) -> str:
    """Return a schema as an element of a rule."""
    options: dict[str, Any] = {"whitespace_pattern": _WHITESPACE}
    if lenient:
        options |= {"lenient": True, "coerce_one_of": True}
    return "%json " + msgspec.json.encode({**schema, "x-guidance": options}).decode()


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only the members that it lists, where it lists some."""
    if any("allOf" in each or {"$ref", "properties"} <= each.keys() for each in _schemas(schema)):
        return schema
    value: dict[str, Any] = _closed(schema)
    return value


def _closed(value: Any, *, completes: bool = False) -> Any:
    """Forbid members that an object's schema does not list, where it lists some and leaves others open.

    A schema that `completes` the list of the schema around it forbids none: it would forbid that list's members.
    """
    if isinstance(value, list):
        return [_closed(item, completes=completes) for item in value]
    if not isinstance(value, dict):
        return value
    lists = isinstance(value.get("properties"), dict)
    inner: dict[str, Any] = {}
    for keyword, each in value.items():
        if keyword in DATA:
            inner[keyword] = each
        elif keyword in BY_NAME and isinstance(each, dict):
            inner[keyword] = {name: _closed(schema) for name, schema in each.items()}
        else:
            inner[keyword] = _closed(each, completes=(lists or completes) and keyword in _BRANCHES)
    if lists and not completes and not _OPEN & value.keys():
        inner["additionalProperties"] = False
    return inner


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield one or several schemas, and all schemas inside."""
    if isinstance(value, list):
        for item in value:
            yield from _schemas(item)
    elif isinstance(value, dict):
        yield value
        for keyword, inner in value.items():
            if keyword in BY_NAME and isinstance(inner, dict):
                yield from _schemas(list(inner.values()))
            elif keyword not in DATA:
                yield from _schemas(inner)


def _count(value: Any, keyword: str) -> int:
    """Return how many members a keyword lists, at all places together."""
    found = (schema.get(keyword) for schema in _schemas(value))
    return sum(len(members) for members in found if isinstance(members, dict | list))
