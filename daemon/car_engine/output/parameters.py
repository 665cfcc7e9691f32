"""Tagged parameters of a call as JSON: texts, values by the tool's schema, and the rules that distinguish them."""

import json
import re
from ast import literal_eval
from collections.abc import Mapping
from typing import Any

from car_base.ipc.types import ParameterKind
from car_engine.output.json_object import is_json
from car_protocol.conversation import Function

# Kinds of the parameters of each function.
Kinds = Mapping[str, Mapping[str, ParameterKind]]
_DEEPEST = 8
_MOST_LITERAL = 100_000
_CDATA = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
# MiniMax M3 writes objects and arrays as nested tags after this mark.
_MARK = "]<]minimax[>["
_NESTED = re.compile(re.escape(_MARK) + r"<(/?)([^<>]*)>")
_MOST_NESTED = 64


def kinds_of(functions: list[Function]) -> dict[str, dict[str, ParameterKind]]:
    """Return the kinds of the parameters of functions, by their schemas."""
    return {
        function.name: {key: _kind(schema, function.parameters) for key, schema in _properties(function).items()}
        for function in functions
    }


def _properties(function: Function) -> dict[str, Any]:
    properties = function.parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def _kind(schema: Any, root: dict[str, Any]) -> ParameterKind:
    types = _types(schema, root, depth=_DEEPEST)
    if "string" not in types:
        return "value" if types else "any"
    return "text" if types == {"string"} else "any"


def resolved(schema: dict[str, Any], key: str, root: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of a property by itself: without a reference at its top, with the root's definitions."""
    root = schema if root is None else root
    found: Any = schema["properties"][key]
    for _ in range(_DEEPEST):
        if not isinstance(found, dict) or not isinstance(reference := found.get("$ref"), str):
            break
        found = _referred(reference, root)
    found = found if isinstance(found, dict) else {}
    return {**{each: root[each] for each in ("$defs", "definitions") if each in root}, **found}


def _referred(reference: str, root: dict[str, Any]) -> Any:
    target: Any = root
    for part in reference.removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, dict) else None
    return target


def _types(schema: Any, root: dict[str, Any], depth: int) -> set[str]:
    """Return the names of the types that a schema allows, empty where it does not list them."""
    if not isinstance(schema, dict) or not depth:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_referred(reference, root), root, depth - 1)
    listed = schema.get("type")
    if listed is not None:
        return {listed} if isinstance(listed, str) else set(map(str, listed))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {"string" if isinstance(value, str) else "value" for value in values}
    found = [_types(each, root, depth - 1) for key in ("anyOf", "oneOf") for each in schema.get(key) or ()]
    return set().union(*found) if found and all(found) else set()


def as_value(text: str, kind: ParameterKind) -> str:
    """Return a parameter's text as JSON: a value where it is one, else a text."""
    bare = text.strip()
    if found := _CDATA.fullmatch(bare):
        return json.dumps(found[1], ensure_ascii=False)
    if kind == "text":
        return json.dumps(text, ensure_ascii=False)
    if is_json(bare):
        return bare
    if _MARK in text:
        return json.dumps(_nested(text), ensure_ascii=False)
    if (value := _python(bare)) is not None:
        return value
    return json.dumps(text, ensure_ascii=False)


def _python(text: str) -> str | None:
    """Return a Python literal as JSON, because several templates write such values; None for anything else."""
    if not text or len(text) > _MOST_LITERAL or (text[0] not in "[{(" and text not in ("True", "False", "None")):
        return None
    try:
        return json.dumps(literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _nested(text: str) -> Any:
    """Return what nested tags stand for: `item`s are an array, other names the members of an object."""
    stack: list[tuple[str, list[tuple[str, Any]]]] = [("", [])]
    done = 0
    for tag in _NESTED.finditer(text):
        between, done = text[done : tag.start()], tag.end()
        if not tag[1]:
            if len(stack) > _MOST_NESTED:
                return text
            stack.append((tag[2], []))
        elif len(stack) > 1 and stack[-1][0] == tag[2]:
            name, members = stack.pop()
            stack[-1][1].append((name, _members(members) if members else _plain(between)))
        else:
            return text
    return _members(stack[0][1]) if len(stack) == 1 else text


def _members(members: list[tuple[str, Any]]) -> Any:
    if all(name == "item" for name, _ in members):
        return [value for _, value in members]
    return dict(members)


def _plain(text: str) -> Any:
    return json.loads(text) if is_json(text) else text
