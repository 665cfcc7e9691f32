"""Answers of tool calls, written and read."""

from itertools import chain, count, groupby

from msgspec import UNSET, UnsetType

from car_daemon.engine.output.tool_calls import CallDelta, Part, ToolCallReader
from car_daemon.ipc.types import ToolStyle
from car_protocol.conversation import FunctionCall, Invalid, ToolCall


def reader(style: ToolStyle) -> ToolCallReader:
    """Return a reader that numbers its calls."""
    numbers = count()
    return ToolCallReader(style, lambda: f"id{next(numbers)}")


def call(number: int, name: str, arguments: str, invalid: Invalid | UnsetType = UNSET) -> ToolCall:
    """Return the call that the reader numbered so."""
    return ToolCall(f"id{number}", FunctionCall(name, arguments), invalid=invalid)


def read(style: ToolStyle, pieces: list[str]) -> list[str | ToolCall]:
    """Return the text and the calls of an answer in their order, neighbouring text as one."""
    released = chain.from_iterable(push_all(reader(style), pieces))
    parts: list[str | ToolCall] = []
    for _, run in groupby(released, key=lambda part: part.id if isinstance(part, ToolCall) else None):
        same = list(run)
        parts.append(same[0] if isinstance(same[0], ToolCall) else "".join(map(str, same)))
    return parts


def push_all(calls: ToolCallReader, pieces: list[str]) -> list[list[Part]]:
    """Return what each piece and the end released, calls as soon as they are whole."""
    released = [*(calls.push(piece) for piece in pieces), calls.finish()]
    return [[part for part in parts if not isinstance(part, CallDelta)] for parts in released]
