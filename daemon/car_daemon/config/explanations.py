"""msgspec's messages about values of the configuration, with what may be written instead."""

from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from car_daemon.host.devices import PATTERN, PATTERN_OR_AUTO

_DEVICES = '"cpu", "gpu" for all GPUs, or "gpu0" to "gpu99" for one of them'
_WORDS = {PATTERN: f"write {_DEVICES}", PATTERN_OR_AUTO: f'write "auto", {_DEVICES}, or a list of them'}


def explained(why: str, kind: type, path: str) -> str:
    """Return a message about the member of a table at a path, with the words of a pattern, or an enum's values."""
    for pattern, words in _WORDS.items():
        if why.endswith(f"matching regex {pattern!r}"):
            return words
    if why.startswith("Invalid enum value") and (choices := _choices(_type_at(kind, path))):
        return f"{why}: write {' or '.join(choices)}"
    return why


def _type_at(kind: Any, path: str) -> Any:
    """Return the type of a member, to which the names of tables lead; None where it is within a list or a dict."""
    for name in path.split("."):
        kind = next((get_type_hints(each, include_extras=True).get(name) for each in _tables(kind)), None)
    return kind


def _tables(kind: Any) -> list[type]:
    if get_origin(kind) in (Union, UnionType):
        return [table for each in get_args(kind) for table in _tables(each)]
    return [kind] if hasattr(kind, "__struct_fields__") else []


def _choices(kind: Any) -> list[str]:
    """Return the texts that a type allows."""
    if get_origin(kind) is Literal:
        return [f'"{each}"' for each in get_args(kind)]
    members = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    return [choice for each in members for choice in _choices(each)]
