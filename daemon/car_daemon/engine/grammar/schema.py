"""JSON schemas as grammars: closed where they say nothing, with a bounded taste for white space."""

from collections.abc import Iterator
from typing import Any

import msgspec

# A sampler with no sense of proportion could write white space for ever.
_WHITESPACE = r"( |\n[ \t]{0,20})?"
# With one of these beside them, or allOf anywhere, `properties` are not the whole story.
_OPEN = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "anyOf", "oneOf", "$ref", "if"}
)
# With more the library takes many seconds, and minutes with some more: it compares every pattern with all others.
_MEMBERS_MAX = 3000
_PATTERNS_MAX = 64
# Texts that have to match several patterns at once take twice the time and memory for each of them.
_MERGED_PATTERNS_MAX = 16
# What stands under these is no schema, under the next ones may hold beside what they stand in, and under the last ones
# is a schema for each name.
_DATA = frozenset({"const", "enum", "default", "examples"})
_BRANCHES = frozenset({"anyOf", "oneOf", "if", "then", "else"})
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def is_too_wide(schemas: list[dict[str, Any]]) -> bool:
    """Whether schemas list so many members of objects, or patterns, that nobody can wait for them."""
    members = max(_count(schemas, "properties"), _count(schemas, "required"))
    many = members > _MEMBERS_MAX or _count(schemas, "patternProperties") > _PATTERNS_MAX
    return many or any(_merges(schema) and _patterns(schema) > _MERGED_PATTERNS_MAX for schema in schemas)


def as_lark(schema: dict[str, Any]) -> str:
    """Return a grammar whose texts are JSON and valid under the schema."""
    return "start: " + embedded(closed(schema))


def embedded(schema: dict[str, Any]) -> str:
    """Return a schema as an element of a rule."""
    options = {"whitespace_pattern": _WHITESPACE}
    return "%json " + msgspec.json.encode({**schema, "x-guidance": options}).decode()


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have no members but those that it lists, where it lists some."""
    if any("allOf" in each or {"$ref", "properties"} <= each.keys() for each in _schemas(schema)):
        return schema
    value: dict[str, Any] = _closed(schema)
    return value


def _closed(value: Any, *, completes: bool = False) -> Any:
    """Forbid members that an object's schema does not list, where it lists some and says nothing of others.

    One that `completes` another one's list forbids none: it would forbid those of the other.
    """
    if isinstance(value, list):
        return [_closed(item, completes=completes) for item in value]
    if not isinstance(value, dict):
        return value
    lists = isinstance(value.get("properties"), dict)
    inner = {
        keyword: _closed_under(keyword, each, completes=(lists or completes) and keyword in _BRANCHES)
        for keyword, each in value.items()
    }
    if lists and not completes and not _OPEN & value.keys():
        inner["additionalProperties"] = False
    return inner


def _closed_under(keyword: str, value: Any, *, completes: bool) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _BY_NAME and isinstance(value, dict):
        return {name: _closed(schema) for name, schema in value.items()}
    return _closed(value, completes=completes)


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema, or several, and all that are in them."""
    if isinstance(value, list):
        for item in value:
            yield from _schemas(item)
    elif isinstance(value, dict):
        yield value
        for keyword, inner in value.items():
            if keyword in _BY_NAME and isinstance(inner, dict):
                yield from _schemas(list(inner.values()))
            elif keyword not in _DATA:
                yield from _schemas(inner)


def _count(value: Any, keyword: str) -> int:
    """Return how many members a keyword lists, wherever it stands."""
    found = (schema.get(keyword) for schema in _schemas(value))
    return sum(len(members) for members in found if isinstance(members, dict | list))


def _merges(value: Any) -> bool:
    """Whether several schemas may hold for the same text."""
    return any("allOf" in schema or ("$ref" in schema and len(schema) > 1) for schema in _schemas(value))


def _patterns(value: Any) -> int:
    return sum("pattern" in schema for schema in _schemas(value))
