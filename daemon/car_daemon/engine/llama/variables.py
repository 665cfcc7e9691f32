"""A chat as the variables of a template, in the form that Hugging Face's templates take."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from car_daemon.engine.frames import Chat
from car_protocol.conversation import Message, ToolCall
from car_protocol.free_form import check_depth

# What is done to every value that holds a client's words.
Mark = Callable[[Any], Any]
_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode


class Arguments(dict[str, Any]):
    """A call's arguments: an object to templates that look into it, JSON to those that write it into text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


def chat_variables(chat: Chat, mark: Mark, *, null_content: bool, typed: bool) -> dict[str, Any]:
    """Return what a template is given of a chat; raises ValueError for arguments that are no JSON object.

    `null_content` says that content which is not there is None, not an empty text; `typed` that it is a list of parts.
    """
    given: dict[str, Any] = {
        "messages": [_message(message, mark, null_content, typed) for message in chat.messages],
        "tools": mark(msgspec.to_builtins(chat.tools)) or None,
    }
    if chat.reasoning == "off":
        given["enable_thinking"] = False
    # Names of variables are no text.
    return given | {name: mark(value) for name, value in chat.template_args.items()}


def _message(message: Message, mark: Mark, null_content: bool, typed: bool) -> dict[str, Any]:
    text = mark(message.text)
    # Templates compare roles, and a role is a plain name.
    given: dict[str, Any] = {"role": message.role, "content": [{"type": "text", "text": text}] if typed else text}
    if message.reasoning is not None:
        given["reasoning_content"] = mark(message.reasoning)
    if message.tool_calls:
        given["tool_calls"] = [_call(call, mark) for call in message.tool_calls]
        if null_content and not message.text:
            given["content"] = None
    for member in ("tool_call_id", "name"):
        if isinstance(value := getattr(message, member), str):
            given[member] = mark(value)
    return given


def _call(call: ToolCall, mark: Mark) -> dict[str, Any]:
    arguments = _decode_arguments(call.function.arguments)
    check_depth("messages", arguments)
    function = {"name": mark(call.function.name), "arguments": Arguments(mark(arguments))}
    return {"id": mark(call.id), "type": call.type, "function": function}
