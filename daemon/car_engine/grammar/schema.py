"""JSON schemas as grammars, and the places in a schema that the library reports."""

import re
from collections.abc import Callable, Iterator
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
    """Return a schema whose objects have only the members that it lists, if it lists any."""
    if any("allOf" in each or {"$ref", "properties"} <= each.keys() for each in _schemas(schema)):
        return schema
    value: dict[str, Any] = _closed(schema)
    return value


def _closed(value: Any, *, completes: bool = False) -> Any:
    """Forbid members that an object's schema does not list, if it lists some and leaves others open.

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


# The last number below which all integers are exact in JSON as most programs read it. The library computes with such
# numbers: it would write another number than a larger one, and some bounds below all of them end its process.
_EXACT = 2**53 - 1
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_BEYOND = f"a number beyond {_EXACT:,} on either side of 0 is not exact in JSON: write a text, or a smaller number"
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FORMAT = re.compile(r"Unknown format: (.*)")
# The library's error goes on with the whole grammar.
ERROR_TEXT = re.compile(r"failed to compile JSON schema: (.*)")
UNIMPLEMENTED = "Unimplemented keys"
_ONE_OF = "oneOf"
_Schema = dict[str, Any]


def normalized(schema: _Schema) -> _Schema:
    """Return a schema as the library reads it: counts such as 2.0 as integers, dynamic references as plain.

    Bounds that no exact number reaches are the last exact number.
    """
    anchors: dict[object, list[str]] = {}
    for place, each in schemas_in(schema):
        for keyword in ("$dynamicAnchor", "$anchor"):
            if keyword in each:
                anchors.setdefault(f"#{each[keyword]}", []).append(place)
    return dict(_normal(schema, {name: places[0] for name, places in anchors.items() if len(set(places)) == 1}))


def inexact(schema: _Schema) -> tuple[str, str] | None:
    """Return the place of a number that answers cannot have exactly, and what to do; None if there is none.

    The schema is normalized, so that a bound beyond the exact numbers is gone.
    """
    for place, each in schemas_in(schema):
        for keyword, value in each.items():
            bounds = [value] if keyword in (*_LOWER, *_UPPER) and _is_number(value) else []
            values = _integers(value) if keyword in ("const", "enum") else bounds
            if any(abs(number) > _EXACT for number in values):
                return f"{place}/{keyword}", _BEYOND
    return None


def place_of(error: str, schema: _Schema) -> str | None:
    """Return the place in a schema that an error of the library is about; None if that is not known.

    If the error does not tell, it is the first keyword whose value no schema can have.
    """
    about = _about(error)
    if about is not None:
        return next((place for place, each in schemas_in(schema) if about(each)), None)
    return next(
        (
            f"{place}/{keyword}"
            for place, each in schemas_in(schema)
            for keyword, value in each.items()
            if keyword in _FORMS and not _FORMS[keyword](value)
        ),
        None,
    )


def left_out(warnings: list[str], schema: _Schema) -> list[str]:
    """Return the places of the keywords that the library's warnings name."""
    keywords: set[str] = set()
    formats: set[str] = set()
    for warning in warnings:
        if UNIMPLEMENTED in warning:
            keywords.update(_QUOTED.findall(warning))
        elif (found := _FORMAT.search(warning)) is not None:
            formats.add(found[1])
        elif _ONE_OF in warning:
            keywords.add(_ONE_OF)
    return [
        f"{place}/{_escaped(keyword)}"
        for place, each in schemas_in(schema)
        for keyword, value in each.items()
        if keyword in keywords or (keyword == "format" and isinstance(value, str) and value in formats)
    ]


def schemas_in(value: Any, place: str = "") -> Iterator[tuple[str, _Schema]]:
    """Yield all schemas, outer schemas first, with their places."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from schemas_in(item, f"{place}/{number}")
    elif isinstance(value, dict):
        yield place, value
        for keyword, inner in value.items():
            beneath = f"{place}/{_escaped(keyword)}"
            if keyword in BY_NAME and isinstance(inner, dict):
                for name, schema in inner.items():
                    yield from schemas_in(schema, f"{beneath}/{_escaped(name)}")
            elif keyword not in DATA:
                yield from schemas_in(inner, beneath)


def _about(error: str) -> Callable[[_Schema], bool] | None:
    """Return the test of the schemas that an error may be about."""
    found = ERROR_TEXT.search(error)
    if found is not None and UNIMPLEMENTED in found[1]:
        keywords = set(_QUOTED.findall(found[1]))
        return lambda each: not keywords.isdisjoint(each)
    if (found := _FORMAT.search(error)) is not None:
        name = found[1].partition("\n")[0]
        return lambda each: each.get("format") == name
    if "oneOf constraints" in error:
        return lambda each: _ONE_OF in each
    if "regex parse error" in error:
        return lambda each: isinstance(each.get("pattern"), str) and each["pattern"] in error
    if "Pointer" in error or "Resource" in error:
        return lambda each: isinstance(each.get("$ref"), str) and each["$ref"].lstrip("#") in error
    for keyword in (*_COUNTS, "type"):
        if f"'{keyword}'" in error or (keyword == "type" and "Invalid type" in error):
            return lambda each, keyword=keyword: keyword in each  # type: ignore[misc]  # mypy cannot infer its default
    return None


def _normal(value: Any, anchors: dict[object, str], *, by_name: bool = False) -> Any:
    if isinstance(value, list):
        return [_normal(item, anchors) for item in value]
    if not isinstance(value, dict):
        return value
    normal: dict[str, Any] = {}
    for keyword, inner in value.items():
        if by_name:
            normal[keyword] = _normal(inner, anchors)
        elif keyword in DATA:
            normal[keyword] = inner
        elif keyword in _NUMBERS and _is_number(inner):
            normal[keyword] = _NUMBERS[keyword](inner)
        elif keyword in ("$ref", "$dynamicRef") and isinstance(inner, str) and inner in anchors:
            normal["$ref"] = f"#{anchors[inner]}"
        elif keyword == "$dynamicAnchor" and f"#{inner}" in anchors:
            continue
        else:
            normal[keyword] = _normal(inner, anchors, by_name=keyword in BY_NAME)
    return normal


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integers(value: Any) -> Iterator[int]:
    """Yield the integers inside a JSON value."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _integers(inner)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _whole(value: float) -> float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# How the library reads the numbers of a keyword.
_NUMBERS: dict[str, Callable[[float], float]] = {
    **dict.fromkeys(_COUNTS, _whole),
    **dict.fromkeys(_LOWER, lambda value: max(value, -_EXACT)),
    **dict.fromkeys(_UPPER, lambda value: min(value, _EXACT)),
}
# What the value of a keyword has to be.
_FORMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_COUNTS, lambda value: _is_number(value) and value >= 0),
    **dict.fromkeys((*_LOWER, *_UPPER), lambda value: isinstance(value, int | float)),
    **dict.fromkeys(("properties", "patternProperties", "$defs"), lambda value: isinstance(value, dict)),
    "required": _are_names,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "pattern": lambda value: isinstance(value, str),
    "type": lambda value: isinstance(value, str) or _are_names(value),
}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
