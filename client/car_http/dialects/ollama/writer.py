"""The answers of Ollama's `/api/chat` and `/api/generate`: one object, or lines of objects."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from car_client.results import Answer, Chunk, ToolCallDelta
from car_http.dialects.common import arguments_data
from car_http.dialects.errors import encoded, ollama_error
from car_http.dialects.job import NDJSON, Writer
from car_http.dialects.openai_parts import call_pieces, card_object, token_logprobs
from car_http.problems import Problem
from car_protocol.answer import Progress, Timings

_NS_PER_MS = 1_000_000


def now() -> str:
    """Return the time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaWriter(Writer):
    """One answer of a chat, or of a prompt."""

    kind = NDJSON

    def __init__(self, model: str, *, chats: bool, left_out: Sequence[str] = ()) -> None:
        self._model = model
        self._chats = chats
        self._left_out = left_out

    def progress(self, progress: Progress) -> bytes:
        """Return nothing: the dialect has no line for it."""
        return b""

    def alive(self) -> bytes:
        """Return a line without a text."""
        return _line(self._piece("", None, []) | {"done": False})

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the line of a piece."""
        if not (chunk.text or chunk.reasoning or chunk.tool_calls or chunk.logprobs):
            return b""
        shape = self._piece(chunk.text, chunk.reasoning, chunk.tool_calls or [])
        if chunk.logprobs:
            shape["logprobs"] = token_logprobs(chunk.logprobs)
        return _line(shape | {"done": False})

    def end(self, answer: Answer) -> bytes:
        """Return the line with the figures."""
        return _line(self._piece("", None, []) | _figures(answer, self._left_out))

    def fail(self, problem: Problem) -> bytes:
        """Return the error as a line."""
        return encoded(ollama_error(problem)) + b"\n"

    def whole(self, answer: Answer) -> bytes:
        """Return the answer in one object."""
        shape = self._piece(answer.text, answer.reasoning, call_pieces(answer))
        if answer.logprobs:
            shape["logprobs"] = token_logprobs(answer.logprobs)
        return msgspec.json.encode(shape | _figures(answer, self._left_out))

    def _piece(self, text: str, thinking: str | None, calls: list[ToolCallDelta]) -> dict[str, Any]:
        shown: dict[str, Any] = {"role": "assistant", "content": text} if self._chats else {"response": text}
        if thinking:
            shown["thinking"] = thinking
        if calls:
            shown["tool_calls"] = _calls(calls)
        head = {"model": self._model, "created_at": now()}
        return head | ({"message": shown} if self._chats else shown)


def _calls(calls: list[ToolCallDelta]) -> list[dict[str, Any]]:
    """Return calls with their arguments as data."""
    return [
        {"id": call.id, "function": {"name": call.name, "arguments": arguments_data(call.arguments or "")}}
        for call in calls
    ]


def _figures(answer: Answer, left_out: Sequence[str]) -> dict[str, Any]:
    timings: Timings = answer.timings
    return {
        "done": True,
        "done_reason": "stop" if answer.finish_reason == "stop" else "length",
        "total_duration": round(timings.total_ms * _NS_PER_MS),
        "load_duration": 0,
        "prompt_eval_count": answer.usage.prompt_tokens,
        "prompt_eval_duration": round(timings.prefill_ms * _NS_PER_MS),
        "eval_count": answer.usage.completion_tokens,
        "eval_duration": round(timings.decode_ms * _NS_PER_MS),
        "card": card_object(answer, left_out),
    }


def _line(shape: dict[str, Any]) -> bytes:
    return msgspec.json.encode(shape) + b"\n"
