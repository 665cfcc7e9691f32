"""Conversations and tools: the input of the model's chat template, and the calls that it makes."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from car_protocol.free_form import check_free_form
from car_protocol.notes import note

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="up to 64 letters, digits, `_`, `.` and `-`")]


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
    """One turn of a conversation; content may be null where the turn is made of tool calls."""

    role: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}$", description="up to 32 letters, digits, `_` and `-`")]
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
    """Raise ValueError where `continues` is set and the last message is not an assistant's text."""
    if not continues:
        return
    if messages is None:
        raise ValueError("`continue_last`: goes with messages only")
    if messages[-1].role != "assistant" or messages[-1].tool_calls or messages[-1].media:
        raise ValueError("`continue_last`: the last message has to be an assistant's text")


def check_tools(tools: list[Tool]) -> None:
    """Raise ValueError for functions that share a name or whose schemas are out of bounds."""
    if len({tool.function.name for tool in tools}) < len(tools):
        raise ValueError("`tools`: a function is named twice")
    if tools:
        check_free_form("tools", *(tool.function.parameters for tool in tools))
