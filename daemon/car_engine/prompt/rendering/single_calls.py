"""Answers with several calls, for templates that show one call an answer."""

from itertools import takewhile

from msgspec import UNSET
from msgspec.structs import replace

from car_protocol.conversation import Message


def one_by_one(messages: list[Message]) -> list[Message]:
    """Return the messages with each call as an answer of its own, which its result follows."""
    turns: list[Message] = []
    rest = messages
    while rest:
        message, *rest = rest
        if len(message.tool_calls or ()) < 2:
            turns.append(message)
            continue
        results = list(takewhile(lambda each: each.role == "tool", rest))
        rest = rest[len(results) :]
        turns += _apart(message, results)
    return turns


def _apart(message: Message, results: list[Message]) -> list[Message]:
    """Return the calls of an answer with their results; results of no call come last."""
    turns: list[Message] = []
    left = list(results)
    for number, call in enumerate(message.tool_calls or ()):
        base = message if number == 0 else Message("assistant", "")
        turns.append(replace(base, tool_calls=[call]))
        # A result without an id is of the next call.
        place = next((place for place, each in enumerate(left) if each.tool_call_id in (call.id, UNSET)), None)
        if place is not None:
            turns.append(left.pop(place))
    return turns + left
