"""Decoding of `params`, with the member at fault and the values that it may have in errors."""

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from car_protocol.conversation import NAME_PATTERN, ROLE_PATTERN
from car_protocol.envelope import NOT_JSON, require_few_members
from car_protocol.errors import RpcError
from car_protocol.limits import MAX_MEMBERS
from car_protocol.meta import PERSON_PATTERN
from car_protocol.usage import DATE_PATTERN

_ENUM = "Invalid enum value"
_TAG = "Invalid value"
_PLACES = re.compile(r"\[[^\]]*\]")
_WORDS = {
    PERSON_PATTERN: "name a person by up to 64 letters, digits, `_`, `.` and `-`",
    NAME_PATTERN: "write a name of up to 64 letters, digits, `_`, `.` and `-`",
    ROLE_PATTERN: "write a role of up to 32 letters, digits, `_` and `-`",
    DATE_PATTERN: "write a day as `2026-01-31`",
}


def in_words(why: str, kind: Any, path: str, more: Mapping[str, str] | None = None) -> str:
    """Return a message about the member of a struct at a path (`messages[0].role`).

    It has the words of a pattern, of the protocol or of `more`, or the values of an enum.
    """
    for pattern, words in (_WORDS | dict(more or {})).items():
        if why.endswith(f"matching regex {pattern!r}"):
            return words
    choices: list[str] = []
    if why.startswith(_ENUM):
        choices = _choices(_type_at(kind, path))
    elif why.startswith(_TAG):
        parent = path.rpartition(".")[0]
        choices = _tags(_type_at(kind, parent) if parent else kind)
    return f"{why}: write {' or '.join(choices)}" if choices else why


def _tags(kind: Any) -> list[str]:
    """Return the kinds of a union of tagged structs."""
    return [str(each.__struct_config__.tag) for each in _structs(kind) if each.__struct_config__.tag is not None]


def _type_at(kind: Any, path: str) -> Any:
    """Return the type of a member, None if no struct has it."""
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


T = TypeVar("T", bound=msgspec.Struct)
# msgspec ends its messages with the path of the fault (`$.stop[0]`); without one they name it in backticks.
# The messages of our own checks begin with the member.
_PATH = re.compile(r" - at (?:`key` in )?`\$\.((\w+)[^`]*)`$")
# Around the reason: the member, which `param` has, the path, and a value that the client sent.
_AROUND = re.compile(
    r"""^`[\w.\[\]]+`: |(?<=value) (?:'.*'|".*")(?= - at |$)| - at (?:`key` in )?`\$[^`]*`$""", re.DOTALL
)
# Of an object at a path: the member that it lacks, or has too much.
_OF_STRUCT = re.compile(r"(?:unknown field|required field) `([^`]*)` - at ")
_NAMED = re.compile(r"(?:unknown field|required field|^) ?`([^`]*)`")
_MAX_NAME = 128
_MAX_WHY = 256
# Characters: half of them are more than msgspec writes before a value, and more than the longest path after it.
_MAX_MESSAGE = 1024


def decode_params(kind: type[T], text: bytes) -> T:
    """Decode and check params; raises RpcError `invalid_params` with `param`, `limit` or `parse_error`.

    `param` is the member at fault; of a kind that `names_paths` the path within it (`questions[3].options`).
    """
    text = text or b"{}"
    if len(text) > MAX_MEMBERS:
        require_few_members(text)
    try:
        return msgspec.json.decode(text, type=kind)
    except NOT_JSON as error:
        raise _fault(kind, text, error) from error


def message_of(error: Exception) -> str:
    """Return msgspec's message; of a long one the middle is left out, where the value is that the client sent.

    Its begin says what is wrong and its end where. Patterns that look for both would take long for a long value.
    """
    message, half = str(error), _MAX_MESSAGE // 2
    return message if len(message) <= _MAX_MESSAGE else message[:half] + message[-half:]


def reason_of(message: str, kind: Any, path: str) -> str:
    """Return the reason in msgspec's message about the member of `kind` at a path, without the value that was sent."""
    return in_words(_AROUND.sub("", message), kind, path)


def invalid_param(name: str) -> RpcError:
    """Return the error that names one member of params."""
    return RpcError("invalid_params", param=name[:_MAX_NAME])


def _fault(kind: type, text: bytes, error: Exception) -> RpcError:
    try:
        msgspec.json.decode(text)
    except msgspec.ValidationError:
        # Still a JSON text: one of its numbers overflows a double.
        pass
    except NOT_JSON:
        return RpcError("parse_error")
    message = message_of(error)
    place, member = _place(message)
    why = reason_of(message, kind, place)[:_MAX_WHY]
    param = member
    if place and getattr(kind, "names_paths", False):
        named = _OF_STRUCT.search(message)
        param = place if named is None else f"{place}.{named[1]}"
    return RpcError("invalid_params", param=param[:_MAX_NAME], why=why)


def _place(message: str) -> tuple[str, str]:
    """Return the path of the value at fault, and the member of params that it begins with."""
    if found := _PATH.search(message):
        return found[1], found[2]
    named = _NAMED.search(message)
    return ("", named[1] if named else "")
