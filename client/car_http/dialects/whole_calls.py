"""Tool calls go out once they are whole, because programs run what they get; a call that was cut is text."""

from typing import TypeVar

import msgspec
from msgspec import structs

from car_client.results import Answer, Chunk, OneAnswer, ToolCallDelta
from car_http.dialects.common import is_object
from car_http.dialects.openai_parts import answers_of
from car_protocol.answer import joined_calls
from car_protocol.conversation import FunctionCall

A = TypeVar("A", Answer, OneAnswer)


class WholeCalls:
    """The calls of a stream, which are held until more of their answer follows, or its end."""

    def __init__(self) -> None:
        self._held: dict[int, list[ToolCallDelta]] = {}  # the pieces of the last call, by the index of the answer

    def released(self, chunk: Chunk) -> list[Chunk]:
        """Return what of the stream may go out now, in order."""
        held = self._held.setdefault(chunk.index or 0, [])
        if not held and not chunk.tool_calls:
            return [chunk]
        before = []
        if held and (chunk.text or chunk.reasoning):
            before.append(_chunk(chunk.index, [_joined(held)]))
            held.clear()
        whole = []
        for piece in chunk.tool_calls or []:
            if held and piece.id is not None:
                whole.append(_joined(held))
                held.clear()
            held.append(piece)
        return [*before, structs.replace(chunk, tool_calls=whole or None)]

    def rest(self, answer: Answer) -> list[Chunk]:
        """Return what the end of an answer releases: each last call, as text if it was cut."""
        chunks = []
        for index, each in enumerate(answers_of(answer)):
            if held := self._held.pop(index, None):
                call = _joined(held)
                called = FunctionCall(call.name or "", call.arguments or "")
                place = index if answer.answers else None
                cut = _was_cut(each, called)
                chunks.append(_chunk(place, [], _text(called)) if cut else _chunk(place, [call]))
        return chunks


def without_cut_call(answer: A) -> A:
    """Return a whole answer whose last call is text if it was cut."""
    if isinstance(answer, Answer) and answer.answers:
        return structs.replace(answer, answers=[without_cut_call(each) for each in answer.answers])
    if not answer.tool_calls or not _was_cut(answer, answer.tool_calls[-1].function):
        return answer
    text = (answer.text or "") + _text(answer.tool_calls[-1].function)
    return structs.replace(answer, text=text, tool_calls=answer.tool_calls[:-1] or None)


def _was_cut(answer: Answer | OneAnswer, called: FunctionCall) -> bool:
    """Return whether a limit or a stop string ended an answer within its last call."""
    return (answer.finish_reason != "stop" or answer.stop is not None) and not is_object(called.arguments)


def _text(called: FunctionCall) -> str:
    return f'{{"name": {msgspec.json.encode(called.name).decode()}, "arguments": {called.arguments}'


def _joined(pieces: list[ToolCallDelta]) -> ToolCallDelta:
    (call,) = joined_calls(pieces)
    return ToolCallDelta(index=pieces[0].index, id=call.id, name=call.function.name, arguments=call.function.arguments)


def _chunk(index: int | None, calls: list[ToolCallDelta], text: str = "") -> Chunk:
    return Chunk(id=0, seq=0, index=index, text=text, tool_calls=calls or None)
