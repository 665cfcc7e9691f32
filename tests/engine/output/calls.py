"""Answers of tool calls, written and read."""

from collections.abc import Iterable
from itertools import chain, count, groupby

from car_base.ipc.frames import CallDelta
from car_base.ipc.types import ToolStyle
from car_engine.output.tool_calls import Part, Thought, ToolCallReader
from car_protocol.answer import joined_calls
from car_protocol.conversation import FunctionCall, Invalid, ToolCall


def reader(style: ToolStyle) -> ToolCallReader:
    """Return a reader that numbers its calls."""
    numbers = count()
    return ToolCallReader(style, lambda: f"id{next(numbers)}")


def call(number: int, name: str, arguments: str, invalid: Invalid | None = None) -> ToolCall:
    """Return the call that the reader numbered so."""
    return ToolCall(f"id{number}", FunctionCall(name, arguments), invalid=invalid)


def read(style: ToolStyle, pieces: list[str]) -> list[str | ToolCall]:
    """Return the text and the calls of an answer in their order, neighbouring text as one."""
    return in_order(chain.from_iterable(push_all(reader(style), pieces)))


def in_order(parts: Iterable[Part]) -> list[str | ToolCall]:
    """Return text and calls in their order, neighbouring text as one, thoughts left out."""
    found: list[str | ToolCall] = []
    kept = (part for part in parts if not isinstance(part, Thought))
    for is_text, run in groupby(kept, key=lambda part: isinstance(part, str)):
        same = list(run)
        if is_text:
            found.append("".join(map(str, same)))
        else:
            found += joined_calls(part for part in same if isinstance(part, CallDelta))
    return found


def push_all(calls: ToolCallReader, pieces: list[str]) -> list[list[Part]]:
    """Return what each piece and the end released."""
    return [*(calls.push(piece) for piece in pieces), calls.finish()]


def said(parts: list[Part]) -> tuple[str, str, list[ToolCall]]:
    """Return the text, the thoughts and the calls."""
    text = "".join(part for part in parts if isinstance(part, str))
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    return text, thoughts, joined_calls(part for part in parts if isinstance(part, CallDelta))
