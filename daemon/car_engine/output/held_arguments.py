"""Whether the arguments of a call hold by the schema of its tool, as far as that tells a call from other objects."""

from typing import Any

from msgspec import MsgspecError, json

from car_engine.output.literals import referred

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
            and all(self._holds(value, each, depth - 1) for each in _listed(schema, "allOf"))
            and all(
                any(self._holds(value, each, depth - 1) for each in _listed(schema, keyword))
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
        return all(name in value for name in _listed(schema, "required")) and all(
            self._holds(each, named.get(name, other), depth - 1) for name, each in value.items()
        )


def _is_of_type(value: Any, listed: Any) -> bool:
    names = [listed] if isinstance(listed, str) else listed
    if not isinstance(names, list):
        return True
    kinds = tuple(kind for name in names for kind in _TYPES.get(str(name), ()))
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (int in kinds and isinstance(value, float) and value.is_integer())


def _is_chosen(value: Any, schema: dict[str, Any]) -> bool:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    return not isinstance(choices, list) or value in choices


def _listed(schema: dict[str, Any], keyword: str) -> list[Any]:
    listed = schema.get(keyword)
    return listed if isinstance(listed, list) else []
