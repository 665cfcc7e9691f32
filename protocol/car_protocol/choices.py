"""The values that an enum allows, in msgspec's messages about another one."""

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

_ENUM = "Invalid enum value"
_TAG = "Invalid value"
_PLACES = re.compile(r"\[[^\]]*\]")


def with_choices(why: str, kind: Any, path: str) -> str:
    """Return a message about the member of a struct at a path (`messages[0].role`), with the values of an enum."""
    choices: list[str] = []
    if why.startswith(_ENUM):
        choices = _choices(_type_at(kind, path))
    elif why.startswith(_TAG):
        choices = _tags(_type_at(kind, path.rpartition(".")[0]))
    return f"{why}: write {' or '.join(choices)}" if choices else why


def _tags(kind: Any) -> list[str]:
    """Return the kinds of a union of tagged structs."""
    return [str(each.__struct_config__.tag) for each in _structs(kind) if each.__struct_config__.tag is not None]


def _type_at(kind: Any, path: str) -> Any:
    """Return the type of a member, None where no struct has it."""
    for name in _PLACES.sub("", path).split("."):
        kind = next((found for each in _structs(kind) if (found := get_type_hints(each).get(name))), None)
    return kind


def _structs(kind: Any) -> list[Any]:
    """Return the structs within a type, a list's or a union's too."""
    if hasattr(kind, "__struct_fields__"):
        return [kind]
    return [each for inner in get_args(kind) for each in _structs(inner)]


def _choices(kind: Any) -> list[str]:
    """Return the values that a type allows, texts in quotes."""
    if get_origin(kind) is Literal:
        return [f'"{each}"' if isinstance(each, str) else str(each) for each in get_args(kind)]
    return [choice for inner in get_args(kind) for choice in _choices(inner)]
