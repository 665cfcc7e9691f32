"""The tools of `POST /v1/responses`: functions and custom tools, by themselves or in namespaces.

The daemon has one list of functions: a tool in a namespace is offered under both names, and its calls are mapped back.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from car_http.dialects.common import given
from car_http.problems import bad

# The only parameter of a custom tool, whose input is free text.
CUSTOM_INPUT = "input"
_CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
_CUSTOM, _NAMESPACE = "custom", "namespace"
_SEPARATOR = "__"
# The daemon's limit of a name, of which a longer one keeps its beginning and a hash.
_MOST_CHARACTERS = 64
_HASH_CHARACTERS = 8
Tool = dict[str, Any]


class Origin(Struct, frozen=True):
    """A tool as the request has it."""

    name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def members(self) -> dict[str, Any]:
        """The members of a call that name the tool."""
        return given(name=self.name, namespace=self.namespace)


class Tools(Struct, frozen=True):
    """The functions for the daemon, and by their names the tools of the request."""

    offered: list[Tool]
    origins: Mapping[str, Origin]


def read_tools(tools: list[Tool]) -> Tools:
    """Translate tools; raises Problem."""
    offered: list[Tool] = []
    origins: dict[str, Origin] = {}
    for tool, origin, place in _flat(tools):
        name = offered_name(origin.name, origin.namespace)
        if name in origins:
            raise bad(f"{place}.name", f"two tools are offered as `{name}`: rename one of them")
        origins[name] = origin
        parameters = _CUSTOM_SCHEMA if origin.custom else tool.get("parameters")
        function = given(name=name, description=tool.get("description"), parameters=parameters)
        offered.append({"type": "function", "function": function})
    return Tools(offered, origins)


def offered_name(name: Any, namespace: Any) -> Any:
    """Return the name under which the daemon has a tool."""
    if not isinstance(namespace, str) or not isinstance(name, str) or not namespace:
        return name
    joined = namespace.removesuffix(_SEPARATOR) + _SEPARATOR + name
    if len(joined) <= _MOST_CHARACTERS:
        return joined
    return (
        joined[: _MOST_CHARACTERS - _HASH_CHARACTERS] + hashlib.sha256(joined.encode()).hexdigest()[:_HASH_CHARACTERS]
    )


def _flat(tools: list[Tool]) -> Iterator[tuple[Tool, Origin, str]]:
    """Yield each function and custom tool with its origin and its place in the request."""
    for number, tool in enumerate(tools):
        place = f"tools[{number}]"
        if tool.get("type") != _NAMESPACE:
            yield tool, _origin(tool, None, place), place
            continue
        for inner_number, inner in enumerate(_inner(tool, place)):
            inner_place = f"{place}.tools[{inner_number}]"
            described = given(description=tool.get("description")) | inner
            yield described, _origin(inner, _text(tool.get("name"), f"{place}.name"), inner_place), inner_place


def _inner(tool: Tool, place: str) -> list[Tool]:
    inner = tool.get("tools")
    if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
        raise bad(f"{place}.tools", "give the list of the namespace's tools")
    return inner


def _origin(tool: Tool, namespace: str | None, place: str) -> Origin:
    kind = tool.get("type")
    if kind not in ("function", _CUSTOM):
        raise bad(place, f"tools of the type `{kind}` are not offered: leave it out")
    return Origin(_text(tool.get("name"), f"{place}.name"), namespace, kind == _CUSTOM)


def _text(name: Any, place: str) -> str:
    if not isinstance(name, str) or not name:
        raise bad(place, "give a name")
    return name
