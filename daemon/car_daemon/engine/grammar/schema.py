"""JSON schemas as grammars: closed where they say nothing, with a bounded taste for white space."""

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


def is_too_wide(schemas: list[dict[str, Any]]) -> bool:
    """Whether schemas list so many members of objects, or patterns for their names, that nobody can wait for them."""
    members = max(_count(schemas, "properties"), _count(schemas, "required"))
    return members > _MEMBERS_MAX or _count(schemas, "patternProperties") > _PATTERNS_MAX


def as_lark(schema: dict[str, Any]) -> str:
    """Return a grammar whose texts are JSON and valid under the schema."""
    return "start: " + embedded(closed(schema))


def embedded(schema: dict[str, Any]) -> str:
    """Return a schema as an element of a rule."""
    options = {"whitespace_pattern": _WHITESPACE}
    return "%json " + msgspec.json.encode({**schema, "x-guidance": options}).decode()


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have no members but those that it lists, where it lists some."""
    if _holds(schema, "allOf"):
        return schema
    value: dict[str, Any] = _closed(schema)
    return value


def _closed(value: Any) -> Any:
    """Forbid members that an object's schema does not list, where it lists some and says nothing of others."""
    if isinstance(value, list):
        return [_closed(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {name: each if name in ("const", "enum", "default") else _closed(each) for name, each in value.items()}
    if isinstance(value.get("properties"), dict) and not _OPEN & value.keys():
        inner["additionalProperties"] = False
    return inner


def _count(value: Any, keyword: str) -> int:
    """Return how many members a keyword lists, wherever it stands."""
    if isinstance(value, list):
        return sum(_count(item, keyword) for item in value)
    if not isinstance(value, dict):
        return 0
    members = value.get(keyword)
    own = len(members) if isinstance(members, dict | list) else 0
    return own + sum(_count(inner, keyword) for inner in value.values())


def _holds(value: Any, keyword: str) -> bool:
    if isinstance(value, list):
        return any(_holds(item, keyword) for item in value)
    return isinstance(value, dict) and (keyword in value or any(_holds(inner, keyword) for inner in value.values()))
