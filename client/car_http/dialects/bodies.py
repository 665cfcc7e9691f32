"""Objects that the bodies of several dialects share: parts of a content, tools, and card's own members."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from car_protocol.infer import Lora, Milliseconds, Priority
from car_protocol.meta import note


class ImageUrl(Struct):
    """An image of OpenAI's chat completions."""

    url: Annotated[str, note("a data URL: the door fetches nothing")]


class Sound(Struct):
    """A sound of OpenAI's dialects."""

    data: Annotated[str | None, note("base64 of the file")] = None
    format: Annotated[str | None, note("wav or mp3")] = None


class Part(Struct, kw_only=True):
    """A part of a content of OpenAI's dialects; it has the member that its type names."""

    type: Annotated[str, note("chat completions: text, refusal, image_url; Responses: input_text, output_text, ...")]
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    data: Annotated[Any, note("of input_json: a JSON value, which is shown as JSON")] = None
    input_audio: Sound | None = None


class Function(Struct, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, note("a JSON schema")] = None


class Tool(Struct, kw_only=True):
    """A tool of OpenAI's chat completions, and of Ollama's dialect."""

    type: Annotated[str | None, note("`function`, the only one that is offered")] = None
    function: Function | None = None


class Named(Struct):
    """The function that has to be called."""

    name: str


class Allowed(Struct, kw_only=True):
    """The tools of a request that may be called now."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[Tool] = []


class Choice(Struct, kw_only=True):
    """A choice of one function, or of some, of OpenAI's chat completions."""

    type: Annotated[str | None, note("function or allowed_tools")] = None
    function: Named | None = None
    allowed_tools: Allowed | None = None


class NamedSchema(Struct, kw_only=True, omit_defaults=True):
    """A schema of a whole answer."""

    schema: Annotated[dict[str, Any] | None, note("a JSON schema")] = None
    strict: Annotated[bool | None, note("true: keywords that cannot be enforced are refused")] = None
    name: str | None = None
    description: str | None = None


class Form(NamedSchema, kw_only=True, omit_defaults=True):
    """The form of a whole answer."""

    type: Annotated[str, note("text, json_object, or json_schema, whose schema is here or in `json_schema`")] = "text"
    json_schema: Annotated[NamedSchema | None, note("of chat completions")] = None


class Own(Struct, kw_only=True, forbid_unknown_fields=True):
    """Members of card's own; the headers `X-Card-...` have the same names."""

    wait: Annotated[bool | None, note("false: refused unless a sequence is free now")] = None
    queue: Annotated[bool | None, note("false: refused when the queue is full")] = None
    supersede: Annotated[str | None, note("a key, whose newest request ends the older one")] = None
    device: Annotated[str | None, note("`cpu`, `gpu` (any) or `gpu0`, ...")] = None
    priority: Priority | None = None
    session: Annotated[str | None, note("a name, whose requests prefer one replica")] = None
    timeout_ms: Annotated[Milliseconds | None, note("deadline of the whole answer")] = None
    queue_timeout_ms: Annotated[Milliseconds | None, note("deadline of the wait in the queue")] = None
    lora: Annotated[list[Lora] | None, note("adapters of the model")] = None
    lenient: Annotated[bool | None, note("leave out keywords of a schema that cannot be enforced")] = None
    client: Annotated[str | None, note("a label")] = None
    reasoning_tokens: Annotated[int | None, note("the most tokens of thoughts")] = None
    reproducible: Annotated[bool | None, note("the same request gives the same answer again, at a cost")] = None
