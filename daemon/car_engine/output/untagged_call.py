"""An answer that is one call without the tags of its family: an object alone, or in a fenced block."""

from collections.abc import Mapping
from typing import Any

from msgspec import MsgspecError, json

from car_engine.output.families import Family
from car_engine.output.json_object import take_value, text_of
from car_engine.output.literals import listed, referred
from car_engine.output.stream_buffer import Steps, StreamBuffer

# Arguments have 64 levels at most, and alternatives that refer to each other multiply: beyond it a text is no call.
_MOST_CHECKS = 10_000
_DEEPEST = 128
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def holds(arguments: str, schema: str) -> bool:
    """Return whether arguments are an object with the types, required members and choices of a JSON schema.

    Other keywords are not checked; a schema beyond the bounds holds for nothing.
    """
    try:
        value = json.decode(arguments, type=dict[str, Any])
    except MsgspecError:
        return False
    return _Check(json.decode(schema)).holds(value)


class _Check:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST_CHECKS

    def holds(self, value: Any, depth: int = _DEEPEST) -> bool:
        return self._holds(value, self._root, depth)

    def _holds(self, value: Any, schema: Any, depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or depth == 0:
            return False
        if not isinstance(schema, dict):
            return schema is not False
        if isinstance(reference := schema.get("$ref"), str):
            return self._holds(value, referred(reference, self._root), depth - 1)
        return (
            _is_of_type(value, schema.get("type"))
            and _is_chosen(value, schema)
            and self._members_hold(value, schema, depth)
            and all(self._holds(value, each, depth - 1) for each in listed(schema, "allOf"))
            and all(
                any(self._holds(value, each, depth - 1) for each in listed(schema, keyword))
                for keyword in ("anyOf", "oneOf")
                if keyword in schema
            )
        )

    def _members_hold(self, value: Any, schema: dict[str, Any], depth: int) -> bool:
        if isinstance(value, list):
            return all(self._holds(each, schema.get("items"), depth - 1) for each in value)
        if not isinstance(value, dict):
            return True
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        other = schema.get("additionalProperties")
        return all(name in value for name in listed(schema, "required")) and all(
            self._holds(each, named.get(name, other), depth - 1) for name, each in value.items()
        )


def _is_of_type(value: Any, kinds: Any) -> bool:
    names = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(names, list):
        return True
    allowed = tuple(kind for name in names for kind in _TYPES.get(str(name), ()))
    if isinstance(value, bool):
        return bool in allowed
    return isinstance(value, allowed) or (int in allowed and isinstance(value, float) and value.is_integer())


def _is_chosen(value: Any, schema: dict[str, Any]) -> bool:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    return not isinstance(choices, list) or value in choices


_NONE = ("", "")


def take_untagged(buffer: StreamBuffer, family: Family, schemas: Mapping[str, str]) -> Steps[tuple[str, str]]:
    """Take an answer; return the name and the arguments of its call, both empty for any other text.

    A call has a name of `schemas` and arguments that hold by its schema, and nothing but its frame stands around it.
    Other texts are recognized as early as they differ, because the stream waits meanwhile.
    """
    yield from buffer.take_spaces()
    for before, after in family.untagged:
        if (yield from buffer.take_literal(before)):
            name, arguments = yield from _take_object(buffer, family.keys, schemas)
            if arguments and (yield from _ends_with(buffer, after)) and holds(arguments, schemas[name]):
                return name, arguments
            break
    return _NONE


def _take_object(buffer: StreamBuffer, keys: tuple[str, str], schemas: Mapping[str, str]) -> Steps[tuple[str, str]]:
    members = dict[str, str]()
    yield from buffer.take_spaces()
    opens = "{"
    while (yield from buffer.take_literal(opens)):
        yield from buffer.take_spaces()
        key = text_of((yield from take_value(buffer)))
        if key not in keys or key in members:
            return _NONE
        yield from buffer.take_spaces()
        if not (yield from buffer.take_literal(":")):
            return _NONE
        yield from buffer.take_spaces()
        value = (yield from take_value(buffer)) or ""
        members[key] = text_of(value) or "" if key == keys[0] else value
        if key == keys[0] and members[key] not in schemas:
            return _NONE
        yield from buffer.take_spaces()
        opens = ","
    name, arguments = (members.get(key, "") for key in keys)
    return (name, arguments) if name and (yield from buffer.take_literal("}")) else _NONE


def _ends_with(buffer: StreamBuffer, text: str) -> Steps[bool]:
    """Return whether nothing but a text is left of the answer, which is not cut."""
    yield from buffer.take_spaces()
    found = yield from buffer.take_literal(text)
    yield from buffer.take_spaces()
    return found and not (yield from buffer.peek()) and not buffer.cut
