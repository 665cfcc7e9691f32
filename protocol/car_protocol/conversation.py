"""Conversations and tools: the input of the model's chat template, the calls that it makes, and free-form members."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from car_protocol.limits import MAX_DEPTH, MAX_VALUES
from car_protocol.meta import note

Container = dict[str, Any] | list[Any]
_LEAST, _MOST = -(2**63), 2**64 - 1


def check_free_form(name: str, *values: object) -> None:
    """Raise ValueError naming the member if its values are out of bounds, or a number overflows a double.

    Integers of more than 64 bits become doubles in place, because frames to an engine cannot carry them.
    """
    if any(values):
        for container in _walk(name, values):
            _bound_integers(name, container)


def check_exact(name: str, value: object) -> None:
    """Raise ValueError naming the member if its values are out of bounds, or an integer has more than 64 bits."""
    for container in chain([[value]], _walk(name, [value])):
        if any(type(each) is int and not _LEAST <= each <= _MOST for each in _members(container)):
            raise ValueError(f"`{name}`: a number has more than 64 bits: write it as a text")


def check_depth(name: str, *values: object) -> None:
    """Raise ValueError naming the member if its values nest too deeply, or are too many."""
    for _ in _walk(name, values):
        pass


def _walk(name: str, values: Iterable[object]) -> Iterator[Container]:
    containers, count = _containers(values), 0
    for _ in range(MAX_DEPTH):
        if not containers:
            return
        count += sum(map(len, containers))
        if count > MAX_VALUES:
            # Before they are looked at: a frame has room for millions, which would take seconds.
            raise ValueError(
                f"`{name}`: has at least {count:,} values, at most {MAX_VALUES:,} are allowed: send less at once"
            )
        yield from containers
        containers = [inner for outer in containers for inner in _containers(_members(outer))]
    if containers:
        raise ValueError(f"`{name}`: nests deeper than {MAX_DEPTH} levels: send its inner part as a text")


def _containers(values: Iterable[object]) -> list[Container]:
    return [value for value in values if isinstance(value, dict | list)]


def _members(container: Container) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container


def _bound_integers(name: str, container: Container) -> None:
    places: Iterable[tuple[Any, object]] = container.items() if isinstance(container, dict) else enumerate(container)
    for place, value in places:
        if type(value) is int and not _LEAST <= value <= _MOST:
            container[place] = _as_double(name, value)


def _as_double(name: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"`{name}`: a number is too large") from error


NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"
ROLE_PATTERN = r"^[A-Za-z0-9_-]{1,32}$"
# The roles whose messages instruct the model.
SYSTEM_ROLES = ("system", "developer")
Name = Annotated[str, Meta(pattern=NAME_PATTERN, description="up to 64 letters, digits, `_`, `.` and `-`")]


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag="text", tag_field="type"):
    """One piece of a message's content."""

    text: str


class ImagePart(Struct, frozen=True, forbid_unknown_fields=True, tag="image", tag_field="type"):
    """A PNG, JPEG or GIF in a message's content; `data` is base64."""

    data: Annotated[str, note("base64 of a PNG, JPEG or GIF of up to 5 MiB and 16 megapixels")]


class AudioPart(Struct, frozen=True, forbid_unknown_fields=True, tag="audio", tag_field="type"):
    """A WAV or MP3 in a message's content; `data` is base64."""

    data: Annotated[str, note("base64 of a WAV or MP3 of up to 5 MiB and 300 s")]


class FunctionCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A function's name and its arguments as a JSON text."""

    name: str
    arguments: Annotated[str, note("a JSON text")]


Invalid = Literal["name", "arguments"]


class ToolCall(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One call that a model made; a `tool` message answers it by its id."""

    id: str
    function: FunctionCall
    # A factory, because a plain default would be left out.
    type: Annotated[Literal["function"], Meta(extra_json_schema={"default": "function"})] = field(
        default_factory=lambda: "function"
    )
    invalid: Annotated[
        Invalid | None,
        note(
            "`name`: no tool has this name; `arguments`: they are not a JSON object, or were cut by `max_tokens` or "
            "the deadline"
        ),
    ] = None


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation; content may be null if the turn is made of tool calls."""

    role: Annotated[str, Meta(pattern=ROLE_PATTERN, description="up to 32 letters, digits, `_` and `-`")]
    content: Annotated[
        str | Annotated[list[TextPart | ImagePart | AudioPart], Meta(max_length=64)] | None,
        note("null beside tool calls only"),
    ] = None
    reasoning: Annotated[str | None, note("thoughts of an earlier answer, for templates that show them")] = None
    tool_calls: Annotated[
        Annotated[list[ToolCall], Meta(max_length=64)] | UnsetType, note("the calls of an earlier answer")
    ] = UNSET
    tool_call_id: Annotated[str | UnsetType, note("the call that a `tool` message answers")] = UNSET
    name: Annotated[Annotated[str, Meta(max_length=64)] | UnsetType, note("of the tool, for templates")] = UNSET

    def __post_init__(self) -> None:
        if self.content is None and not self.tool_calls:
            raise ValueError("a message needs content or tool calls")

    @property
    def media(self) -> list[ImagePart | AudioPart]:
        """The content's images and sounds."""
        parts = self.content if isinstance(self.content, list) else []
        return [part for part in parts if not isinstance(part, TextPart)]

    @property
    def text(self) -> str:
        """The content's text as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if isinstance(part, TextPart))
        return self.content or ""


class Function(Struct, frozen=True, omit_defaults=True):
    """A function that a model may call; `parameters` is a JSON schema, unknown members are ignored."""

    name: Name
    description: str = ""
    parameters: Annotated[dict[str, Any], note("a JSON schema")] = {}


class Tool(Struct, frozen=True):
    """A tool as OpenAI's clients write it."""

    type: Literal["function"]
    function: Function


class NamedTool(Struct, frozen=True, forbid_unknown_fields=True):
    """The function that has to be called."""

    name: Name


Tools = Annotated[list[Tool], Meta(max_length=128)]
Messages = Annotated[list[Message], Meta(min_length=1, max_length=512)]
ToolChoice = Literal["auto", "none", "required"] | NamedTool
ReasoningMode = Literal["auto", "keep", "on", "off"]


def check_continued(messages: list[Message] | None, *, continues: bool) -> None:
    """Raise ValueError if `continues` is set and the last message is not an assistant's text."""
    if not continues:
        return
    if messages is None:
        raise ValueError("`continue_last`: goes with messages only")
    if messages[-1].role != "assistant" or messages[-1].tool_calls or messages[-1].media:
        raise ValueError("`continue_last`: the last message has to be an assistant's text")


def check_tools(tools: list[Tool]) -> None:
    """Raise ValueError for functions that share a name or whose schemas are out of bounds."""
    if tools:
        if len({tool.function.name for tool in tools}) < len(tools):
            raise ValueError("`tools`: a function is named twice")
        check_free_form("tools", *(tool.function.parameters for tool in tools))
