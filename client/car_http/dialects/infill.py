"""`POST /infill`, llama-server's: the text of a gap between two others, for editors."""

from typing import Any

from msgspec import Struct

from car_client.results import Answer, Chunk
from car_http.dialects import sse
from car_http.dialects.common import Caller, as_sent, own_params
from car_http.dialects.errors import encoded, openai_error
from car_http.dialects.job import SSE, Job
from car_http.dialects.openai_chat import NAMES, Sampled, sampled_params
from car_http.dialects.openai_parts import card_object
from car_http.problems import Problem, bad
from car_protocol.answer import Progress

_NAMES = {**NAMES, "prompt": ("input_prefix",), "suffix": ("input_suffix",)}
_STOPS = {"stop": "eos", "length": "limit", "deadline": "limit"}


class ExtraFile(Struct, kw_only=True):
    """A text of another file."""

    text: str
    filename: str = ""


class InfillRequest(Sampled, kw_only=True):
    """The body; members that it does not name are dropped."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None
    prompt: str | None = None


def read(request: InfillRequest, caller: Caller) -> Job:
    """Translate a request; raises Problem."""
    if request.n not in (None, 1):
        raise bad("n", "send a request for each answer")
    # What llama-server puts after the gap's mark is the beginning of the gap: here it ends the text before.
    before = [*(extra.text for extra in request.input_extra or []), request.input_prefix, request.prompt or ""]
    params = sampled_params(request, caller) | {"prompt": "".join(before), "suffix": request.input_suffix}
    if params.get("max_tokens") == 0:
        params["max_tokens"] = 1  # editors warm the cache up with 0, below the daemon's least
    writer, members = InfillWriter(request.model or ""), as_sent(request, _NAMES, caller)
    return Job(params | own_params(caller, request.card), request.streams, writer, members)


class InfillWriter:
    """The answer as llama-server's own object; pieces have `stop` false, the last one has the figures."""

    kind = SSE

    def __init__(self, model: str) -> None:
        self._model = model

    def name_model(self, model: str) -> None:
        """Set the model's name."""
        self._model = model

    def begin(self) -> bytes:
        """Return nothing: an answer begins with its first piece."""
        return b""

    def progress(self, progress: Progress) -> bytes:
        """Return a comment."""
        return sse.comment(progress)

    def alive(self) -> bytes:
        """Return a piece without a text."""
        return _piece("")

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a piece of the text."""
        return _piece(chunk.text) if chunk.text else b""

    def end(self, answer: Answer) -> bytes:
        """Return the last object, without a text."""
        return sse.data(self._last("", answer))

    def fail(self, problem: Problem) -> bytes:
        """Return the error as an event."""
        return b"data: " + encoded(openai_error(problem)) + b"\n\n"

    def whole(self, answer: Answer) -> bytes:
        """Return the object."""
        return sse.encode(self._last(answer.text, answer))

    def _last(self, text: str, answer: Answer) -> dict[str, Any]:
        return {
            "index": 0,
            "content": text,
            "model": self._model or answer.model,
            "stop": True,
            "stop_type": "word" if answer.stop else _STOPS[answer.finish_reason or "stop"],
            "stopping_word": answer.stop or "",
            "tokens_predicted": answer.usage.completion_tokens,
            "tokens_evaluated": answer.usage.prompt_tokens,
            "tokens_cached": answer.usage.cached_tokens,
            "truncated": False,
            "timings": _timings(answer),
            "card": card_object(answer),
        }


def _piece(text: str) -> bytes:
    return sse.data({"index": 0, "content": text, "stop": False})


def _timings(answer: Answer) -> dict[str, Any]:
    usage, timings = answer.usage, answer.timings
    return {
        "prompt_n": usage.prompt_tokens - usage.cached_tokens,
        "prompt_ms": timings.prefill_ms,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": timings.decode_ms,
    }
