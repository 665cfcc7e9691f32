"""Places in a JSON schema, as JSON pointers: of what an error of the library is about, and of what it leaves out."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from car_engine.grammar.schema import BY_NAME, DATA

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FORMAT = re.compile(r"Unknown format: (.*)")
# The library's error goes on with the whole grammar.
_MESSAGE = re.compile(r"failed to compile JSON schema: (.*)")
_KEYS = "Unimplemented keys"
_ONE_OF = "oneOf"
_Schema = dict[str, Any]


def normalized(schema: _Schema) -> _Schema:
    """Return a schema as the library reads it: counts such as 2.0 as integers, dynamic references as plain ones."""
    anchors: dict[object, list[str]] = {}
    for place, each in schemas_in(schema):
        for keyword in ("$dynamicAnchor", "$anchor"):
            if keyword in each:
                anchors.setdefault(f"#{each[keyword]}", []).append(place)
    return dict(_normal(schema, {name: places[0] for name, places in anchors.items() if len(set(places)) == 1}))


def place_of(error: str, schema: _Schema) -> str | None:
    """Return the place of the schema that an error of the library is about; None where that is not known."""
    about = _about(error)
    if about is None:
        return None
    return next((place for place, each in schemas_in(schema) if about(each)), None)


def left_out(warnings: list[str], schema: _Schema) -> list[str]:
    """Return the places of the keywords that the library's warnings name."""
    keywords: set[str] = set()
    formats: set[str] = set()
    for warning in warnings:
        if _KEYS in warning:
            keywords.update(_QUOTED.findall(warning))
        elif (found := _FORMAT.search(warning)) is not None:
            formats.add(found[1])
        elif _ONE_OF in warning:
            keywords.add(_ONE_OF)
    return [
        f"{place}/{_escaped(keyword)}"
        for place, each in schemas_in(schema)
        for keyword, value in each.items()
        if keyword in keywords or (keyword == "format" and value in formats)
    ]


def schemas_in(value: Any, place: str = "") -> Iterator[tuple[str, _Schema]]:
    """Yield all schemas, outer ones first, with their places."""
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
    found = _MESSAGE.search(error)
    if found is not None and _KEYS in found[1]:
        keywords = set(_QUOTED.findall(found[1]))
        return lambda each: not keywords.isdisjoint(each)
    if (found := _FORMAT.search(error)) is not None:
        name = found[1].splitlines()[0]
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
        elif keyword in _COUNTS and isinstance(inner, float) and inner.is_integer():
            normal[keyword] = int(inner)
        elif keyword in ("$ref", "$dynamicRef") and isinstance(inner, str) and inner in anchors:
            normal["$ref"] = f"#{anchors[inner]}"
        elif keyword == "$dynamicAnchor" and f"#{inner}" in anchors:
            continue
        else:
            normal[keyword] = _normal(inner, anchors, by_name=keyword in BY_NAME)
    return normal


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
