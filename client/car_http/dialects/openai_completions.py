"""`POST /v1/completions`, with `suffix` for editors and several prompts a request."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard, TypeVar

from msgspec import Struct

from car_client.results import Answer, Chunk
from car_http.dialects import sse
from car_http.dialects.common import Caller, as_sent, given, own_params, packed, refuse
from car_http.dialects.job import Job, Writer
from car_http.dialects.openai_chat import NAMES, Sampled, sampled_params
from car_http.dialects.openai_parts import (
    answers_of,
    card_object,
    completion_logprobs,
    finish_reason,
    new_id,
    progress_object,
    usage_object,
    usage_of,
)
from car_http.problems import bad
from car_protocol.answer import Progress

W = TypeVar("W", bound=Writer)
MOST_PROMPTS = 2048  # OpenAI's
_REFUSED = {"best_of": "answers are not ranked: send n requests of 1"}


class CompletionRequest(Sampled, kw_only=True):
    """The body; members that it does not name are dropped."""

    prompt: str | list[Any] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class Prompts(Struct, frozen=True):
    """The params of each prompt of a request, whose `members` they come from, and the writer of all answers."""

    params: list[dict[str, Any]]
    members: Mapping[str, str]
    whole: Callable[[Sequence[Answer]], bytes]


def read(request: CompletionRequest, caller: Caller) -> Job | Prompts:
    """Translate a request; raises Problem."""
    if request.best_of not in (1, request.n):  # as many as are wanted are not ranked either
        refuse(request, _REFUSED)
    params = sampled_params(request, caller) | given(suffix=request.suffix or None, logprobs=request.logprobs)
    params |= own_params(caller, request.card)
    return read_prompts(request, as_sent(request, NAMES, caller), params, partial(_read_one, request), _together)


def read_prompts(
    request: CompletionRequest,
    members: Mapping[str, str],
    shared: dict[str, Any],
    read_one: Callable[[dict[str, Any], Any, int], tuple[dict[str, Any], W]],
    together: Callable[[Sequence[W], Sequence[Answer]], bytes],
) -> Job | Prompts:
    """Translate the prompts of a request, each by `read_one` with its place; raises Problem.

    All have the same `shared` params, which are written out once: they may be as long as a body.
    """
    prompts = request.prompt if _are_several(request.prompt) else [request.prompt]
    if len(prompts) == 1:
        params, writer = read_one(shared, prompts[0], 0)
        return Job(params, request.streams, writer, members)
    if len(prompts) > MOST_PROMPTS:
        raise bad("prompt", f"{len(prompts)} prompts, at most {MOST_PROMPTS} a request: send them in several requests")
    if request.streams:
        raise bad("stream", "a stream answers one prompt: send the others in requests of their own")
    if "supersede" in shared:
        raise bad("card.supersede", "goes with one prompt: the prompts of one request would end each other")
    shared = packed(shared)
    read_each = [read_one(shared, prompt, place) for place, prompt in enumerate(prompts)]
    return Prompts(
        [packed(params) for params, _ in read_each], members, partial(together, [each for _, each in read_each])
    )


def prompt_params(prompt: Any) -> dict[str, Any]:
    """Return a prompt as the daemon takes it, a text or tokens; raises Problem."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return {"tokens": prompt}
    raise bad("prompt", "give a text, a list of tokens, or a list of either")


def _read_one(
    request: CompletionRequest, shared: dict[str, Any], prompt: Any, index: int
) -> "tuple[dict[str, Any], CompletionWriter]":
    params = shared | prompt_params(prompt)
    if request.echo and "tokens" in params:
        raise bad("echo", "goes with a prompt that is a text")
    echoed = params["prompt"] if request.echo else ""
    writer = CompletionWriter(
        request.model or "",
        usage=request.wants_usage,
        progress=bool(request.return_progress),
        echoed=echoed,
        answers=request.n or 1,
    )
    return params, writer


def _together(writers: "Sequence[CompletionWriter]", answers: Sequence[Answer]) -> bytes:
    """Return the answers as one `text_completion`, in the order of the prompts."""
    shapes = [writer.shape(answer) for writer, answer in zip(writers, answers, strict=True)]
    choices = [choice for shape in shapes for choice in shape["choices"]]
    together = {
        "choices": [choice | {"index": index} for index, choice in enumerate(choices)],
        "usage": usage_object(usage_of([answer.usage for answer in answers])),
        "card": {"prompts": [shape["card"] for shape in shapes]},
    }
    return sse.encode(shapes[0] | together)


def _are_several(prompt: str | list[Any] | None) -> TypeGuard[list[Any]]:
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(each, str | list) for each in prompt)


class CompletionWriter(Writer):
    """The answer as `text_completion`s."""

    def __init__(
        self, model: str, *, usage: bool = False, progress: bool = False, echoed: str = "", answers: int = 1
    ) -> None:
        self._id = new_id("cmpl-")
        self._created = int(time.time())
        self._model = model
        self._usage = usage
        self._progress = progress
        self._echoed = echoed
        self._characters = [len(echoed)] * answers  # of each answer so far, if log-probabilities need it

    def begin(self) -> bytes:
        """Return the prompt, if it is to be echoed."""
        return b"".join(self._piece(each, self._echoed) for each in range(len(self._characters)) if self._echoed)

    def progress(self, progress: Progress) -> bytes:
        """Return a comment, and llama-server's object if the request has `return_progress`."""
        shown = sse.comment(progress)
        if self._progress and progress.phase == "prefill":
            shown += self._piece(0, "", prompt_progress=progress_object(progress))
        return shown

    def alive(self) -> bytes:
        """Return a piece without a text."""
        return self._piece(0, "")

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a piece of the text."""
        if not chunk.text and chunk.logprobs is None:
            return b""
        index = chunk.index or 0
        logprobs = completion_logprobs(chunk.logprobs, self._characters[index])
        self._characters[index] += len(chunk.text)
        return self._piece(index, chunk.text, logprobs)

    def end(self, answer: Answer) -> bytes:
        """Return the reasons of the ends, the usage if requested, and the mark of the end."""
        reasons = [finish_reason(each, called=False) for each in answers_of(answer)]
        last = [_choice(index, "", None, reason) for index, reason in enumerate(reasons)]
        end = b"".join(sse.data(self._object([choice], answer)) for choice in last[:-1])
        end += sse.data(self._object(last[-1:], answer) | {"card": card_object(answer)})
        if self._usage:
            end += sse.data(self._object([], answer) | {"usage": usage_object(answer.usage)})
        return end + b"data: [DONE]\n\n"

    def whole(self, answer: Answer) -> bytes:
        """Return the `text_completion`."""
        return sse.encode(self.shape(answer))

    def shape(self, answer: Answer) -> dict[str, Any]:
        """Return the `text_completion` as data."""
        self._model = self._model or answer.model
        choices = []
        for index, each in enumerate(answers_of(answer)):
            logprobs = completion_logprobs(each.logprobs, self._characters[0])
            choices.append(_choice(index, self._echoed + each.text, logprobs, finish_reason(each, called=False)))
        shape = self._object(choices, answer)
        return shape | {"usage": usage_object(answer.usage), "card": card_object(answer)}

    def _piece(self, index: int, text: str, logprobs: dict[str, Any] | None = None, **more: Any) -> bytes:
        return sse.data(self._object([_choice(index, text, logprobs, None)]) | more)

    def _object(self, choices: list[dict[str, Any]], answer: Answer | None = None) -> dict[str, Any]:
        shape = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "system_fingerprint": answer and answer.fingerprint,
            "choices": choices,
        }
        return shape | {"usage": None} if self._usage else shape


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
