"""`POST /v1/completions`, with `suffix` for editors."""

import time
from collections.abc import Callable
from typing import Any

from car_client.results import Answer, Chunk
from car_http.dialects import sse
from car_http.dialects.common import Caller, given, own_params, refuse
from car_http.dialects.errors import encoded, openai_error
from car_http.dialects.job import SSE, Job
from car_http.dialects.openai_chat import MEMBERS, Sampled, sampled_params
from car_http.dialects.openai_parts import (
    answers_of,
    card_object,
    completion_logprobs,
    finish_reason,
    new_id,
    usage_object,
)
from car_http.problems import Problem, bad
from car_protocol.answer import Progress

_REFUSED = {"best_of": "answers are not ranked: send n requests of 1"}


class CompletionRequest(Sampled, kw_only=True):
    """The body; members that it does not name are dropped."""

    prompt: str | list[Any] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


def read(request: CompletionRequest, caller: Caller) -> Job:
    """Translate a request; raises Problem."""
    if request.best_of not in (1, request.n):  # as many as are wanted are not ranked either
        refuse(request, _REFUSED)
    params = sampled_params(request, caller) | given(suffix=request.suffix or None, logprobs=request.logprobs)
    params |= _prompt(request)
    echoed = params.get("prompt", "") if request.echo else ""
    writer = CompletionWriter(request.model or "", usage=request.wants_usage, echoed=echoed, answers=request.n or 1)
    return Job(params | own_params(caller, request.card), request.streams, writer, MEMBERS)


def _prompt(request: CompletionRequest) -> dict[str, Any]:
    prompt = request.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        if request.echo:
            raise bad("echo", "goes with a prompt that is a text")
        return {"tokens": prompt}
    raise bad("prompt", "send one text, or one list of tokens, a request")


class CompletionWriter:
    """The answer as `text_completion`s."""

    kind = SSE

    def __init__(self, model: str, *, usage: bool = False, echoed: str = "", answers: int = 1) -> None:
        self._id = new_id("cmpl-")
        self._created = int(time.time())
        self._model = model
        self._usage = usage
        self._echoed = echoed
        self._characters = [len(echoed)] * answers  # of each answer so far, where log-probabilities need it
        self.of_text: Callable[[bytes], bytes] | None = self._of_text()

    def name_model(self, model: str) -> None:
        """Set the model's name, where the request left it out."""
        self._model = model
        self.of_text = self._of_text()

    def begin(self) -> bytes:
        """Return the prompt, where it is to be echoed."""
        return b"".join(self._piece(each, self._echoed) for each in range(len(self._characters)) if self._echoed)

    def progress(self, progress: Progress) -> bytes:
        """Return a comment."""
        return sse.comment(progress)

    def alive(self) -> bytes:
        """Return a comment."""
        return sse.ALIVE

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a piece of the text."""
        if not chunk.text and chunk.logprobs is None:
            return b""
        index = chunk.index or 0
        logprobs = completion_logprobs(chunk.logprobs, self._characters[index])
        self._characters[index] += len(chunk.text)
        return self._piece(index, chunk.text, logprobs)

    def end(self, answer: Answer) -> bytes:
        """Return the reasons of the ends, the usage where requested, and the mark of the end."""
        reasons = [finish_reason(each, called=False) for each in answers_of(answer)]
        last = [_choice(index, "", None, reason) for index, reason in enumerate(reasons)]
        end = b"".join(sse.data(self._object([choice])) for choice in last[:-1])
        end += sse.data(self._object(last[-1:]) | {"card": card_object(answer)})
        if self._usage:
            end += sse.data(self._object([]) | {"usage": usage_object(answer.usage)})
        return end + b"data: [DONE]\n\n"

    def fail(self, problem: Problem) -> bytes:
        """Return the error as an event."""
        return b"data: " + encoded(openai_error(problem)) + b"\n\n"

    def whole(self, answer: Answer) -> bytes:
        """Return the `text_completion`."""
        self._model = self._model or answer.model
        choices = []
        for index, each in enumerate(answers_of(answer)):
            logprobs = completion_logprobs(each.logprobs, self._characters[0])
            choices.append(_choice(index, self._echoed + each.text, logprobs, finish_reason(each, called=False)))
        shape = self._object(choices)
        return sse.encode(shape | {"usage": usage_object(answer.usage), "card": card_object(answer)})

    def _piece(self, index: int, text: str, logprobs: dict[str, Any] | None = None) -> bytes:
        return sse.data(self._object([_choice(index, text, logprobs, None)]))

    def _of_text(self) -> Callable[[bytes], bytes]:
        return sse.of_text(lambda text: self._piece(0, text))

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        shape = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        return shape | {"usage": None} if self._usage else shape


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
