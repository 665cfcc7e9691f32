"""The answer of `POST /v1/responses`: the object, or its streaming events in order."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from car_client.results import Answer, Chunk
from car_http.dialects import sse
from car_http.dialects.job import Writer
from car_http.dialects.openai_parts import call_pieces, card_object, new_id, token_logprobs
from car_http.dialects.responses.tools import Origin, custom_input
from car_http.problems import Problem
from car_protocol.answer import Logprob, Usage

Item = dict[str, Any]


class Facts(Struct, frozen=True):
    """The model, the members of the request that every response repeats, and its tools by the daemon's names."""

    model: str
    repeated: dict[str, Any]
    origins: Mapping[str, Origin]
    left_out: Sequence[str] = ()


class ResponsesWriter(Writer):
    """One response; of its items at most one is open at a time."""

    def __init__(self, facts: Facts) -> None:
        self._id = new_id("resp_")
        self._created = int(time.time())
        self._model = facts.model
        self._repeated = facts.repeated
        self._origins = facts.origins
        self._left_out = facts.left_out
        self._number = 0  # of the next event
        self._output: list[Item] = []
        self._open: str | None = None  # the type of the last item while it grows
        self._pieces: list[str] = []  # its text so far
        self._logprobs: list[dict[str, Any]] = []
        self._logprobs_to_come: list[Logprob] = []  # of thoughts and calls: a message alone has a place for them

    def begin(self) -> bytes:
        """Return the events that precede all items."""
        shape = self._response("in_progress")
        return self._event("response.created", response=shape) + self._event("response.in_progress", response=shape)

    def alive(self) -> bytes:
        """Return the event of a response that goes on."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the events of a piece."""
        events = b""
        if chunk.reasoning:
            events += self._grow("reasoning", chunk.reasoning)
        self._logprobs_to_come += chunk.logprobs or []
        if chunk.text or (chunk.logprobs and self._open == "message"):
            events += self._grow("message", chunk.text, self._logprobs_to_come)
            self._logprobs_to_come = []
        for call in chunk.tool_calls or []:
            events += self._close() + self._call(call.id or "", call.name or "", call.arguments or "")
        return events

    def end(self, answer: Answer) -> bytes:
        """Return the events that end the open item and the response."""
        status = _status(answer)
        events = self._close(status)
        return events + self._event(f"response.{status}", response=self._ended(answer, status))

    def fail(self, problem: Problem) -> bytes:
        """Return the event of a failed response."""
        error = {"code": problem.code, "message": problem.message}
        events = self._close("incomplete")
        return events + self._event("response.failed", response=self._response("failed") | {"error": error})

    def whole(self, answer: Answer) -> bytes:
        """Return the response in one piece."""
        piece = Chunk(
            id=0,
            seq=0,
            text=answer.text,
            reasoning=answer.reasoning,
            tool_calls=call_pieces(answer),
            logprobs=answer.logprobs,
        )
        self._model = self._model or answer.model
        status = _status(answer)
        self.chunk(piece)
        self._close(status)
        return sse.encode(self._ended(answer, status))

    def _grow(self, kind: str, text: str, logprobs: Sequence[Logprob] = ()) -> bytes:
        events = b"" if self._open == kind else self._close() + self._start(kind)
        self._pieces.append(text)
        shown = token_logprobs(logprobs)
        self._logprobs += shown
        return events + self._delta(kind, text, shown)

    def _delta(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        more = {"logprobs": logprobs} if kind == "message" else {}
        return self._event(_EVENTS[kind] + ".delta", **self._place(), content_index=0, delta=text, **more)

    def _start(self, kind: str) -> bytes:
        item: Item = {"id": new_id(_PREFIXES[kind]), "type": kind, "status": "in_progress", "content": []}
        item |= _MORE[kind]
        self._open, self._pieces, self._logprobs = kind, [], []
        self._output.append(item)
        events = self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        return events + self._event(
            "response.content_part.added", **self._place(), content_index=0, part=_part(kind, "", [])
        )

    def _call(self, call_id: str, name: str, arguments: str) -> bytes:
        """Return all events of a call."""
        tool = self._origins.get(name, Origin(name))
        kind = _CUSTOM if tool.custom else _FUNCTION
        item: Item = {"id": new_id(_PREFIXES[kind]), "type": kind, "status": "in_progress"}
        item |= {"call_id": call_id, **tool.members, _MEMBERS[kind]: ""}
        self._output.append(item)
        events = self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        text = custom_input(arguments) if tool.custom else arguments
        events += self._event(_EVENTS[kind] + ".delta", **self._place(), delta=text)
        self._output[-1] |= {"status": "completed", _MEMBERS[kind]: text}
        return (
            events + self._event(_EVENTS[kind] + ".done", **self._place(), **{_MEMBERS[kind]: text}) + self._item_done()
        )

    def _close(self, status: str = "completed") -> bytes:
        """End the open item, if there is one."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        text = "".join(self._pieces)
        part = _part(kind, text, self._logprobs)
        more = {"logprobs": self._logprobs} if kind == "message" else {}
        place = self._place()
        events = self._event(_EVENTS[kind] + ".done", **place, content_index=0, text=text, **more)
        events += self._event("response.content_part.done", **place, content_index=0, part=part)
        self._output[-1] |= {"status": status, "content": [part]}
        return events + self._item_done()

    def _item_done(self) -> bytes:
        place = len(self._output) - 1
        return self._event("response.output_item.done", output_index=place, item=self._output[-1])

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _event(self, name: str, **members: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.event(name, {"type": name, "sequence_number": number, **members})

    def _ended(self, answer: Answer, status: str) -> dict[str, Any]:
        shape = self._response(status) | {
            "usage": _usage(answer.usage),
            "card": card_object(answer, self._left_out),
        }
        if status == "incomplete":
            shape["incomplete_details"] = {"reason": "max_output_tokens"}
        return shape

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": list(self._output),
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            "usage": None,
            **self._repeated,
        }


_FUNCTION, _CUSTOM = "function_call", "custom_tool_call"
# The events of each type of item.
_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    _FUNCTION: "response.function_call_arguments",
    _CUSTOM: "response.custom_tool_call_input",
}
# The members of calls that have their arguments.
_MEMBERS = {_FUNCTION: "arguments", _CUSTOM: "input"}
_MORE: dict[str, Item] = {"message": {"role": "assistant"}, "reasoning": {"summary": []}}
_PREFIXES = {"message": "msg_", "reasoning": "rs_", _FUNCTION: "fc_", _CUSTOM: "ctc_"}


def _part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _status(answer: Answer) -> str:
    return "completed" if answer.finish_reason == "stop" else "incomplete"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
