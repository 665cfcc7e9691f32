"""The tools of `POST /v1/responses`: functions and custom tools, by themselves or in namespaces.

The daemon has one list of functions: a tool in a namespace is offered under both names, and its calls are mapped back.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from car_http.dialects.common import given
from car_http.dialects.vendor_tools import each_once, vendor_tool
from car_http.problems import bad
from car_protocol.envelope import NOT_JSON
from car_protocol.meta import note

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
# The daemon's limit of a name; a longer name keeps its beginning and a hash.
_MOST_CHARACTERS = 64
_HASH_CHARACTERS = 8


class Tool(Struct, kw_only=True, omit_defaults=True):
    """A function, a custom tool whose input is free text, or a namespace of both."""

    type: Annotated[str | None, note("function, custom or namespace")] = None
    name: str | None = None
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, note("of a function, a JSON schema")] = None
    strict: bool | None = None
    format: Annotated[dict[str, Any] | None, note("of a custom tool's input, which stays free")] = None
    tools: Annotated[list["Tool"] | None, note("of a namespace")] = None


class Choice(Struct, kw_only=True, omit_defaults=True):
    """A choice of one tool, or of some."""

    type: Annotated[str | None, note("function, custom or allowed_tools")] = None
    name: str | None = None
    namespace: str | None = None
    mode: Annotated[Literal["auto", "required"] | None, note("of allowed tools")] = None
    tools: Annotated[list["Choice"] | None, note("those that are allowed")] = None


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
    """The functions for the daemon, by their names the tools of the request, and vendors' tools that are left out."""

    offered: list[dict[str, Any]]
    origins: Mapping[str, Origin]
    left_out: tuple[str, ...]


def read_tools(tools: list[Tool]) -> Tools:
    """Translate tools; raises Problem."""
    offered: list[dict[str, Any]] = []
    origins: dict[str, Origin] = {}
    left_out: list[str] = []
    for tool, namespace, place in _flat(tools):
        if (kind := vendor_tool(tool.type)) is not None:
            left_out.append(kind)
            continue
        origin = _origin(tool, namespace, place)
        name = offered_name(origin.name, origin.namespace)
        if name in origins:
            raise bad(f"{place}.name", f"two tools are offered as `{name}`: rename one of them")
        origins[name] = origin
        parameters = _CUSTOM_SCHEMA if origin.custom else tool.parameters
        function = given(name=name, description=tool.description, parameters=parameters)
        offered.append({"type": "function", "function": function})
    return Tools(offered, origins, each_once(left_out))


def offered_name(name: str, namespace: str | None) -> str:
    """Return the name under which the daemon has a tool."""
    if not namespace:
        return name
    joined = namespace.removesuffix(_SEPARATOR) + _SEPARATOR + name
    if len(joined) <= _MOST_CHARACTERS:
        return joined
    return (
        joined[: _MOST_CHARACTERS - _HASH_CHARACTERS] + hashlib.sha256(joined.encode()).hexdigest()[:_HASH_CHARACTERS]
    )


def custom_input(arguments: str) -> str:
    """Return the free text of a custom tool's call; other arguments stay as they are."""
    try:
        return str(msgspec.json.decode(arguments)[CUSTOM_INPUT])
    except (*NOT_JSON, KeyError, TypeError):
        return arguments


def _flat(tools: list[Tool]) -> Iterator[tuple[Tool, str | None, str]]:
    """Yield each tool with its namespace and its place in the request."""
    for number, tool in enumerate(tools):
        place = f"tools[{number}]"
        if tool.type != _NAMESPACE:
            yield tool, None, place
            continue
        if tool.tools is None:
            raise bad(f"{place}.tools", "give the list of the namespace's tools")
        for inner_number, inner in enumerate(tool.tools):
            described = replace(inner, description=inner.description or tool.description)
            yield described, _name(tool, place), f"{place}.tools[{inner_number}]"


def _origin(tool: Tool, namespace: str | None, place: str) -> Origin:
    if tool.type not in ("function", _CUSTOM):
        raise bad(place, f"tools of the type `{tool.type}` are not offered: leave it out")
    return Origin(_name(tool, place), namespace, tool.type == _CUSTOM)


def _name(tool: Tool, place: str) -> str:
    if not tool.name:
        raise bad(f"{place}.name", "give a name")
    return tool.name
