"""System messages that a template does not take where they are: their text goes into a user's turn."""

from msgspec.structs import replace

from car_protocol.conversation import Message, TextPart

_BETWEEN = "\n\n"
_JOINED = ("system", "user")  # the roles whose turns take the text of a late system message


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


def folded_late(messages: list[Message]) -> list[Message]:
    """Return the messages with at most one of the system, the first; later text goes into turns of the user.

    It joins the turn before it, so that a conversation that goes on keeps its beginning, else the turn after it, and
    is a turn of its own if neither is the user's. The results of one turn's calls stay together.
    """
    turns: list[Message] = []
    waiting: list[str] = []  # texts of system messages before the next turn
    for message in messages:
        if message.role == "system" and turns:
            if turns[-1].role in _JOINED and not waiting:
                turns[-1] = _followed(turns[-1], message.text)
            else:
                waiting.append(message.text)
        elif message.role == "tool" or not waiting:
            turns.append(message)
        else:
            turns += _after(_BETWEEN.join(waiting), message)
            waiting.clear()
    return [*turns, Message("user", _BETWEEN.join(waiting))] if waiting else turns


def _after(text: str, message: Message) -> list[Message]:
    """Return a text and the message after it, as one turn if that is the user's."""
    return [_with(message, text)] if message.role == "user" else [Message("user", text), message]


def renamed(messages: list[Message]) -> list[Message]:
    """Return the messages with a developer's as the system's, which most models take them for."""
    return [replace(message, role="system") if message.role == "developer" else message for message in messages]


def _with(message: Message, text: str) -> Message:
    if isinstance(message.content, list):
        return replace(message, content=[TextPart(text + _BETWEEN), *message.content])
    return replace(message, content=_BETWEEN.join((text, message.text)))


def _followed(message: Message, text: str) -> Message:
    if isinstance(message.content, list):
        return replace(message, content=[*message.content, TextPart(_BETWEEN + text)])
    return replace(message, content=_BETWEEN.join((message.text, text)))
