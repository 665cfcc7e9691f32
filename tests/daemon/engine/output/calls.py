"""Answers of tool calls, written and read."""

from itertools import chain, count, groupby

from car_daemon.engine.output.format import ToolStyle
from car_daemon.engine.output.tool_calls import Part, ToolCallReader
from car_protocol.conversation import FunctionCall, ToolCall


def reader(style: ToolStyle) -> ToolCallReader:
    """Return a reader that numbers its calls."""
    numbers = count()
    return ToolCallReader(style, lambda: f"id{next(numbers)}")


def call(number: int, name: str, arguments: str) -> ToolCall:
    """Return the call that the reader numbered so."""
    return ToolCall(f"id{number}", FunctionCall(name, arguments))


def read(style: ToolStyle, pieces: list[str]) -> list[str | ToolCall]:
    """Return the text and the calls of an answer in their order, neighbouring text as one."""
    released = chain.from_iterable(push_all(reader(style), pieces))
    parts: list[str | ToolCall] = []
    for _, run in groupby(released, key=lambda part: part.id if isinstance(part, ToolCall) else None):
        same = list(run)
        parts.append(same[0] if isinstance(same[0], ToolCall) else "".join(map(str, same)))
    return parts


def push_all(calls: ToolCallReader, pieces: list[str]) -> list[list[Part]]:
    """Return what each piece and the end released."""
    return [*(calls.push(piece) for piece in pieces), calls.finish()]
