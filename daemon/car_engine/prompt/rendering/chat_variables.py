"""A chat as the variables of a template, in the form of Hugging Face's templates."""

import json
from collections.abc import Callable
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from car_base.ipc.frames import Chat
from car_engine.prompt.rendering.template_reads import Reads
from car_protocol.conversation import Message, ReasoningMode, Tool, ToolCall, check_depth

# Values by variable. The first value that changes what the template renders counts. A text is a word of the template.
_ON: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (True,),
    "thinking": (True,),
    "thinking_mode": ("enabled", "thinking"),
}
_OFF: dict[str, tuple[Any, ...]] = {
    "enable_thinking": (False,),
    "thinking": (False,),
    "thinking_mode": ("disabled", "chat"),
    "thinking_budget": (0,),
    "reasoning_effort": ("none", "no_think", "minimal"),
}
_EFFORT = "reasoning_effort"
# A template's word for no effort, which is its default.
_NO_EFFORT = "no_think"
# The values with which templates show the thoughts of all earlier answers.
_SHOWN = {
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
    "preserve_thinking": True,
    "preserved_thinking": True,
    "keep_past_thinking": True,
    "think_render_option": "all",
}


def switches(reads: Reads, reasoning: ReasoningMode) -> dict[str, Any]:
    """Return the variables for a mode.

    Without `on` and `off` the template's defaults count: a model whose template closes each thought unless its caller
    switches them on thinks.
    """
    match reasoning:
        case "on":
            effort = {_EFFORT: "high"} if _EFFORT in reads.names and _NO_EFFORT in reads.words else {}
            return _chosen(_ON, reads) | effort
        case "off":
            # A model that thinks always does so as little as it can.
            effort = {_EFFORT: "low"} if _EFFORT in reads.names else {}
            return effort | _chosen(_OFF, reads)
    return dict.fromkeys(reads.switches, True)


def shown_thoughts(reads: Reads) -> dict[str, Any]:
    """Return the variables with which the template shows the thoughts of all earlier answers."""
    return {name: value for name, value in _SHOWN.items() if name in reads.names}


def _chosen(values: dict[str, tuple[Any, ...]], reads: Reads) -> dict[str, Any]:
    known = {name: [each for each in given if _is_known(each, reads)] for name, given in values.items()}
    return {name: given[0] for name, given in known.items() if given and name in reads.names}


def _is_known(value: Any, reads: Reads) -> bool:
    return not isinstance(value, str) or value in reads.words


class Functions(list[Any]):
    """Functions: a list to templates that go through them, JSON to templates that write them as text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False, indent=4)

    def __add__(self, other: Any) -> Any:
        return str(self) + other if isinstance(other, str) else super().__add__(other)

    def __radd__(self, text: str) -> str:
        return text + str(self)


def tool_variables(tools: list[Tool], *, complete: bool) -> list[dict[str, Any]]:
    """Return tools as they were given, or `complete`: with an empty text or schema for each absent member."""
    given: list[dict[str, Any]] = msgspec.to_builtins(tools)
    return [tool | {"function": _completed(tool["function"])} for tool in given] if complete else given


def _completed(function: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, "required": []} | function.get("parameters", {})
    if isinstance(properties := parameters["properties"], dict):
        parameters["properties"] = {name: _described(schema) for name, schema in properties.items()}
    described = {"name": function["name"], "description": function.get("description", "")}
    return described | {"parameters": parameters}


def _described(schema: Any) -> Any:
    return schema | {"description": schema.get("description", "")} if isinstance(schema, dict) else schema


# Applied to every value that contains a client's text.
Escape = Callable[[Any], Any]
_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode
# The members in which templates read the thoughts of an earlier answer, beside `reasoning_content`.
_THOUGHTS = ("reasoning", "thinking", "thought")


class ChatForm(NamedTuple):
    """The form of a chat's variables: content as a list of parts; `complete` fills gaps that a template rejects."""

    typed: bool = False
    complete: bool = False


class Arguments(dict[str, Any]):
    """A call's arguments: an object to templates that read its members, JSON to templates that write it as text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


def chat_variables(chat: Chat, escape: Escape, reads: Reads, form: ChatForm) -> dict[str, Any]:
    """Return the variables; raises ValueError for arguments that are not a JSON object."""
    tools = escape(tool_variables(chat.tools, complete=form.complete))
    arguments = [
        [_decode_arguments(call.function.arguments) for call in message.tool_calls or ()] for message in chat.messages
    ]
    check_depth("arguments", *chain(*arguments))
    given: dict[str, Any] = {
        "messages": [
            _message(message, inputs, escape, reads, form)
            for message, inputs in zip(chat.messages, arguments, strict=True)
        ],
        "tools": tools or ([] if form.complete else None),
    }
    if tools or form.complete:
        given["functions"] = Functions(tool["function"] for tool in tools)
    if not chat.parallel:
        given["parallel_tool_calls"] = False
    if any(message.reasoning for message in chat.messages):
        given |= shown_thoughts(reads)
    given |= switches(reads, chat.reasoning)
    # Names of variables are not escaped: they never become text.
    return given | {name: escape(value) for name, value in chat.template_args.items()}


def dates(now: datetime) -> dict[str, str]:
    """Return today in the variables of templates that have no clock, or a day of the past as their default."""
    return {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}


def _message(
    message: Message, arguments: list[dict[str, Any]], escape: Escape, reads: Reads, form: ChatForm
) -> dict[str, Any]:
    text, thought = message.text, message.reasoning
    if form.complete and message.tool_calls and thought and text and "thinking" in reads.words:
        # Some templates take either beside a call.
        text, thought = "", f"{thought}\n\n{text}"
    # A role is a plain name that templates compare with.
    given: dict[str, Any] = {"role": message.role, "content": escape(text)}
    if form.typed or (thought and reads.thought_parts and message.role == "assistant"):
        given["content"] = _parts(escape(text), escape(thought) if reads.thought_parts else None)
    elif message.tool_calls and not text and reads.null_content and not form.complete:
        given["content"] = None
    if thought is not None:
        members = ("reasoning_content", *(name for name in _THOUGHTS if name in reads.words))
        given |= dict.fromkeys(members, escape(thought))
    if message.tool_calls:
        given["tool_calls"] = [
            _call(call, inputs, escape) for call, inputs in zip(message.tool_calls, arguments, strict=True)
        ]
    for member in ("tool_call_id", "name"):
        if isinstance(value := getattr(message, member), str):
            given[member] = escape(value)
    return given


def _parts(text: str, thought: str | None) -> list[dict[str, str]]:
    thoughts = [{"type": "thinking", "thinking": thought}] if thought else []
    return [*thoughts, {"type": "text", "text": text}] if text or not thoughts else thoughts


def _call(call: ToolCall, arguments: dict[str, Any], escape: Escape) -> dict[str, Any]:
    function = {"name": escape(call.function.name), "arguments": Arguments(escape(arguments))}
    return {"id": escape(call.id), "type": call.type, "function": function}
