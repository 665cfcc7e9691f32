"""The answer of `POST /v1/messages`: the message, or its streaming events in order."""

from collections.abc import Sequence
from typing import Any

from car_client.results import Answer, Chunk, ToolCallDelta
from car_http.dialects import sse
from car_http.dialects.common import arguments_data, called_arguments
from car_http.dialects.errors import anthropic_error
from car_http.dialects.job import Writer
from car_http.dialects.openai_parts import card_object, new_id
from car_http.problems import Problem
from car_protocol.answer import Progress, Usage
from car_protocol.conversation import ToolCall

# Clients send the signature of thoughts back unread.
_SIGNATURE = "card"
_PING = sse.event("ping", {"type": "ping"})
Block = dict[str, Any]


class MessagesWriter(Writer):
    """One message; of its blocks at most one is open at a time."""

    def __init__(self, model: str, left_out: Sequence[str] = ()) -> None:
        self._id = new_id("msg_")
        self._model = model
        self._left_out = left_out
        self._prompt = Usage(0, 0, 0)  # until its progress has the number of its tokens
        self._started = False
        self._blocks = 0
        self._open: str | None = None  # the type of the last block while it grows
        self._called = False

    def progress(self, progress: Progress) -> bytes:
        """Keep the numbers of prompt tokens; return a comment."""
        if isinstance(progress.total, int):
            self._prompt = Usage(progress.total, progress.cached or 0, 0)
        return sse.comment(progress)

    def alive(self) -> bytes:
        """Return a ping, which may come at any time."""
        return _PING

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the events of a piece."""
        events = self._start()
        if chunk.reasoning:
            delta = {"type": "thinking_delta", "thinking": chunk.reasoning}
            events += self._grow({"type": "thinking", "thinking": "", "signature": ""}, delta)
        if chunk.text:
            events += self._grow({"type": "text", "text": ""}, {"type": "text_delta", "text": chunk.text})
        for call in chunk.tool_calls or []:
            events += self._call(call)
        return events

    def end(self, answer: Answer) -> bytes:
        """Return the events that end the open block and the message."""
        events = self._start() + self._close()
        delta = self._stopped(answer, called=self._called)
        events += sse.event("message_delta", {"type": "message_delta", "delta": delta, **self._facts(answer)})
        return events + sse.event("message_stop", {"type": "message_stop"})

    def fail(self, problem: Problem) -> bytes:
        """Return the error as an event."""
        return sse.event("error", anthropic_error(problem))

    def whole(self, answer: Answer) -> bytes:
        """Return the message in one piece."""
        self._model = self._model or answer.model
        blocks: list[Block] = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": _SIGNATURE})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        calls = answer.tool_calls or []
        blocks += [_tool_use(call) | {"input": arguments_data(call.function.arguments)} for call in calls]
        stopped = self._stopped(answer, called=bool(calls))
        return sse.encode(self._message(blocks) | stopped | self._facts(answer))

    def _facts(self, answer: Answer) -> dict[str, Any]:
        return {"usage": _usage(answer.usage), "card": card_object(answer, self._left_out)}

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": _usage(self._prompt)}
        return sse.event("message_start", {"type": "message_start", "message": message})

    def _grow(self, block: Block, delta: dict[str, Any]) -> bytes:
        events = b""
        if self._open != block["type"]:
            events = self._close() + self._begin(block)
        return events + self._delta(delta)

    def _begin(self, block: Block) -> bytes:
        self._open = block["type"]
        return self._event("content_block_start", content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", delta=delta)

    def _close(self) -> bytes:
        """End the open block, if there is one."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        events = b""
        if kind == "thinking":
            events = self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        events += self._event("content_block_stop")
        self._blocks += 1
        return events

    def _call(self, call: ToolCallDelta) -> bytes:
        self._called = True
        block: Block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        return (
            self._close()
            + self._begin(block)
            + self._delta({"type": "input_json_delta", "partial_json": called_arguments(call.arguments)})
        )

    def _event(self, name: str, **members: Any) -> bytes:
        return sse.event(name, {"type": name, "index": self._blocks, **members})

    def _message(self, blocks: list[Block]) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": blocks}

    def _stopped(self, answer: Answer, *, called: bool) -> dict[str, Any]:
        if answer.finish_reason != "stop":
            reason = "max_tokens"
        elif called:
            reason = "tool_use"
        else:
            reason = "stop_sequence" if answer.stop is not None else "end_turn"
        return {"stop_reason": reason, "stop_sequence": answer.stop}


def _tool_use(call: ToolCall) -> Block:
    return {"type": "tool_use", "id": call.id, "name": call.function.name}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the usage: `input_tokens` leaves out tokens of the prompt that came from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
