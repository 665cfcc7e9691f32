"""`POST /completion` and `/completions` in llama-server's own form."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from car_client.results import Answer
from car_http.dialects import sse
from car_http.dialects.common import Caller, as_sent, given, own_params, refuse
from car_http.dialects.job import Job
from car_http.dialects.llama_writer import LlamaWriter, written_params
from car_http.dialects.openai_chat import NAMES
from car_http.dialects.openai_completions import CompletionRequest, Prompts, prompt_params, read_prompts
from car_protocol.meta import note

_NAMES = {**NAMES, "logprobs": ("n_probs",), "tokens": ("prompt",)}
_REFUSED = {
    "post_sampling_probs": "probabilities here are the model's own, before any sampler: leave it out",
    "image_data": "send images to /v1/chat/completions, as parts of a message",
}
# Members that no client of OpenAI's sends.
_OWN = ("n_predict", "n_probs", "response_fields")


class LlamaCompletionRequest(CompletionRequest, kw_only=True):
    """The body; members that it does not name are dropped. `/completions` takes OpenAI's too."""

    n_probs: Annotated[int | None, note("the number of likeliest tokens beside each token")] = None
    response_fields: Annotated[list[str] | None, note("paths of members, as `timings/prompt_n`: only they come")] = None
    post_sampling_probs: bool | None = None
    image_data: list[Any] | None = None

    @property
    def openais(self) -> bool:
        """Whether it is OpenAI's: it names a model, as OpenAI requires, and has no member of llama-server's own."""
        return bool(self.model) and all(getattr(self, name) is None for name in _OWN)


def read(request: LlamaCompletionRequest, caller: Caller) -> Job | Prompts:
    """Translate a request; raises Problem."""
    refuse(request, _REFUSED)
    params = written_params(request, caller) | given(logprobs=request.n_probs or None)
    params |= own_params(caller, request.card)
    return read_prompts(request, as_sent(request, _NAMES, caller), params, partial(_read_one, request), _together)


def _read_one(
    request: LlamaCompletionRequest, shared: dict[str, Any], prompt: Any, index: int
) -> tuple[dict[str, Any], LlamaWriter]:
    params = shared | prompt_params(prompt)
    # Its clients write templates out by themselves.
    params |= given(parse_special="prompt" in params or None)
    writer = LlamaWriter(request, params, index=index * (request.n or 1), fields=request.response_fields or ())
    return params, writer


def _together(writers: Sequence[LlamaWriter], answers: Sequence[Answer]) -> bytes:
    return sse.encode(
        [shape for writer, answer in zip(writers, answers, strict=True) for shape in writer.shapes(answer)]
    )
