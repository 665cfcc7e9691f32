"""The answer of `POST /v1/chat/completions`: one object, or its chunks in order."""

import time
from collections.abc import Sequence
from typing import Any

from car_client.results import Answer, Chunk, OneAnswer, ToolCallDelta
from car_http.dialects import sse
from car_http.dialects.common import given
from car_http.dialects.job import Writer
from car_http.dialects.openai_parts import (
    answers_of,
    call_pieces,
    card_object,
    chat_logprobs,
    finish_reason,
    new_id,
    progress_object,
    timings_object,
    usage_object,
)
from car_protocol.answer import Logprob, Progress

_EMPTY = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}


class ChatWriter(Writer):
    """The answer as `chat.completion` or as `chat.completion.chunk`s."""

    def __init__(
        self,
        model: str,
        *,
        usage: bool = False,
        progress: bool = False,
        probable: bool = False,
        answers: int = 1,
        left_out: Sequence[str] = (),
    ) -> None:
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._model = model
        self._usage = usage
        self._progress = progress
        self._probable = probable
        self._answers = answers
        self._left_out = left_out
        self._called: set[int] = set()  # answers with a call that was sent

    def begin(self) -> bytes:
        """Return the chunk with the role, for each answer."""
        return b"".join(self._delta({"role": "assistant", "content": ""}, index=each) for each in range(self._answers))

    def progress(self, progress: Progress) -> bytes:
        """Return a comment, and llama-server's object if the request has `return_progress`."""
        shown = sse.comment(progress)
        if self._progress and progress.phase == "prefill":
            shown += sse.data(self._object([_EMPTY]) | {"prompt_progress": progress_object(progress)})
        return shown

    def alive(self) -> bytes:
        """Return an empty delta."""
        return sse.data(self._object([_EMPTY]))

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a piece of the text, of the thoughts, or of calls."""
        index = chunk.index or 0
        delta: dict[str, Any] = given(reasoning_content=chunk.reasoning or None, content=chunk.text or None)
        if chunk.tool_calls:
            self._called.add(index)
            delta["tool_calls"] = [{"index": piece.index, **_call(piece)} for piece in chunk.tool_calls]
        if not delta and chunk.logprobs is None:
            return b""
        return self._delta(delta, index=index, logprobs=chunk.logprobs)

    def end(self, answer: Answer) -> bytes:
        """Return the reasons of the ends, the usage if requested, and the mark of the end."""
        last = [self._last(index, each) for index, each in enumerate(answers_of(answer))]
        end = b"".join(sse.data(self._object([choice], answer)) for choice in last[:-1])
        end += sse.data(self._object(last[-1:], answer) | self._facts(answer))
        if self._usage:
            end += sse.data(self._object([], answer) | {"usage": usage_object(answer.usage)})
        return end + b"data: [DONE]\n\n"

    def whole(self, answer: Answer) -> bytes:
        """Return the `chat.completion`."""
        self._model = self._model or answer.model
        choices = [self._choice(index, each) for index, each in enumerate(answers_of(answer))]
        shape = {**self._object(choices, answer), "object": "chat.completion"}
        return sse.encode(shape | {"usage": usage_object(answer.usage)} | self._facts(answer))

    def _facts(self, answer: Answer) -> dict[str, Any]:
        """Return the times as llama-server shows them, and card's own facts."""
        return {"timings": timings_object(answer), "card": card_object(answer, self._left_out)}

    def _choice(self, index: int, answer: Answer | OneAnswer) -> dict[str, Any]:
        calls = [_call(call) for call in call_pieces(answer)]
        content = answer.text or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        return {
            "index": index,
            "message": message | given(reasoning_content=answer.reasoning or None, tool_calls=calls or None),
            "logprobs": chat_logprobs(answer.logprobs) if self._probable else None,
            "finish_reason": finish_reason(answer, called=bool(calls)),
        }

    def _last(self, index: int, answer: Answer | OneAnswer) -> dict[str, Any]:
        reason = finish_reason(answer, called=index in self._called)
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}

    def _delta(self, delta: dict[str, Any], index: int = 0, logprobs: list[Logprob] | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": chat_logprobs(logprobs), "finish_reason": None}
        return sse.data(self._object([choice]))

    def _object(self, choices: list[dict[str, Any]], answer: Answer | None = None) -> dict[str, Any]:
        shape = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "system_fingerprint": answer and answer.fingerprint,  # known at the end, because engines may be replaced
            "choices": choices,
        }
        return shape | {"usage": None} if self._usage else shape


def _call(call: ToolCallDelta) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or ""}}
