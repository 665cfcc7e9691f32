"""System messages of models without a system role: their text goes into the next user's turn."""

from msgspec.structs import replace

from car_protocol.conversation import Message, TextPart

_BETWEEN = "\n\n"


def folded(messages: list[Message]) -> list[Message]:
    """Return the messages without a system role; text that no user's turn follows is a turn of its own."""
    turns: list[Message] = []
    waiting: list[str] = []  # texts of system messages before the next user's turn
    for message in messages:
        if message.role == "system":
            waiting.append(message.text)
        elif message.role == "user" and waiting:
            turns.append(_with(message, _BETWEEN.join(waiting)))
            waiting.clear()
        else:
            turns.append(message)
    return [*turns, Message("user", _BETWEEN.join(waiting))] if waiting else turns


def renamed(messages: list[Message]) -> list[Message]:
    """Return the messages with a developer's as the system's, which most models take them for."""
    return [replace(message, role="system") if message.role == "developer" else message for message in messages]


def _with(message: Message, text: str) -> Message:
    if isinstance(message.content, list):
        return replace(message, content=[TextPart(text + _BETWEEN), *message.content])
    return replace(message, content=_BETWEEN.join((text, message.text)))
