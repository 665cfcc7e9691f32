"""A chat as the variables of a template, in the form of Hugging Face's templates."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from car_daemon.ipc.frames import Chat
from car_protocol.conversation import Message
from car_protocol.free_form import check_depth

# Applied to every value that contains a client's text.
Escape = Callable[[Any], Any]
_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode


class Arguments(dict[str, Any]):
    """A call's arguments: an object to templates that read its members, JSON to templates that write it as text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


def chat_variables(chat: Chat, escape: Escape, *, null_content: bool, typed: bool) -> dict[str, Any]:
    """Return the variables; raises ValueError for arguments that are not a JSON object.

    With `null_content` absent content is None in place of an empty text; with `typed` content is a list of parts.
    """
    given: dict[str, Any] = {
        "messages": [_message(message, escape, null_content, typed) for message in chat.messages],
        "tools": escape(msgspec.to_builtins(chat.tools)) or None,
    }
    if chat.reasoning == "off":
        given["enable_thinking"] = False
    # Names of variables are not escaped: they never become text.
    return given | {name: escape(value) for name, value in chat.template_args.items()}


def _message(message: Message, escape: Escape, null_content: bool, typed: bool) -> dict[str, Any]:
    text = escape(message.text)
    # A role is a plain name that templates compare with.
    given: dict[str, Any] = {"role": message.role, "content": [{"type": "text", "text": text}] if typed else text}
    if message.reasoning is not None:
        given["reasoning_content"] = escape(message.reasoning)
    if message.tool_calls:
        calls = given["tool_calls"] = list[dict[str, Any]]()
        for call in message.tool_calls:
            arguments = _decode_arguments(call.function.arguments)
            check_depth("messages", arguments)
            function = {"name": escape(call.function.name), "arguments": Arguments(escape(arguments))}
            calls.append({"id": escape(call.id), "type": call.type, "function": function})
        if null_content and not message.text:
            given["content"] = None
    for member in ("tool_call_id", "name"):
        if isinstance(value := getattr(message, member), str):
            given[member] = escape(value)
    return given
