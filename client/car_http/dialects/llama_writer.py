"""llama-server's own object of a completion: whole, or its pieces, which have `stop` false, and its last one."""

from collections.abc import Mapping, Sequence
from typing import Any

from car_client.results import Answer, Chunk, OneAnswer
from car_http.dialects import sse
from car_http.dialects.common import Caller, given
from car_http.dialects.job import Writer
from car_http.dialects.openai_chat import Sampled, sampled_params
from car_http.dialects.openai_parts import answers_of, bounded, card_object, progress_object, timings_object
from car_protocol.answer import Logprob, Progress, TokenChoice

_STOPS = {"stop": "eos", "length": "limit", "deadline": "limit"}
# Of the params, the settings that the answer shows; llama-server has another name for the first one.
_SETTINGS = {
    "max_tokens": "n_predict",
    **{name: name for name in ("seed", "temperature", "top_k", "top_p", "min_p", "typical_p", "stop", "grammar")},
}
_NESTED = "/"


def written_params(request: Sampled, caller: Caller) -> dict[str, Any]:
    """Return the params of a completion in llama-server's form; raises Problem."""
    params = sampled_params(request, caller)
    if params.get("max_tokens") == 0:
        params["max_tokens"] = 1  # programs warm the cache up with 0, below the daemon's least
    return params


class LlamaWriter(Writer):
    """The answer to one prompt; `fields` are the paths of the members that the last object has, of all without them."""

    def __init__(
        self, request: Sampled, params: Mapping[str, Any], *, index: int = 0, fields: Sequence[str] = ()
    ) -> None:
        self._model = request.model or ""
        self._progress = bool(request.return_progress)
        self._prompt = params.get("prompt", "")
        self._settings = {shown: params[name] for name, shown in _SETTINGS.items() if name in params}
        self._index = index
        self._fields = fields

    def progress(self, progress: Progress) -> bytes:
        """Return a comment, and the tokens of the prompt if the request has `return_progress`."""
        shown = sse.comment(progress)
        if self._progress and progress.phase == "prefill":
            shown += self._piece(Chunk(id=0, seq=0, text=""), prompt_progress=progress_object(progress))
        return shown

    def alive(self) -> bytes:
        """Return a piece without a text."""
        return self._piece(Chunk(id=0, seq=0, text=""))

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a piece of the text."""
        return self._piece(chunk) if chunk.text or chunk.tokens or chunk.logprobs else b""

    def end(self, answer: Answer) -> bytes:
        """Return the last objects, without a text."""
        return b"".join(sse.data(each) for each in self.shapes(answer))

    def whole(self, answer: Answer) -> bytes:
        """Return the object, or a list of as many as the request has answers."""
        shapes = self.shapes(answer)
        return sse.encode(shapes if len(shapes) > 1 else shapes[0])

    def shapes(self, answer: Answer) -> list[dict[str, Any]]:
        """Return the objects of the answers to the prompt."""
        shapes = [self._last(self._index + place, each, answer) for place, each in enumerate(answers_of(answer))]
        return [_parts(shape, self._fields) for shape in shapes] if self._fields else shapes

    def _piece(self, chunk: Chunk, **more: Any) -> bytes:
        shown = {"index": self._index + (chunk.index or 0), "content": chunk.text, "stop": False}
        return sse.data(shown | {"tokens": chunk.tokens or []} | _probabilities(chunk.logprobs) | more)

    def _last(self, index: int, one: Answer | OneAnswer, answer: Answer) -> dict[str, Any]:
        # Of several objects the first alone has the grammar, which may be as long as a body.
        settings = {name: value for name, value in self._settings.items() if name != "grammar" or not index}
        shown = {
            "index": index,
            "content": one.text or "",
            "tokens": one.tokens or [],
            "model": self._model or answer.model,
            "stop": True,
            "stop_type": "word" if one.stop else _STOPS[one.finish_reason or "stop"],
            "stopping_word": one.stop or "",
            "tokens_predicted": answer.usage.completion_tokens,
            "tokens_evaluated": answer.usage.prompt_tokens,
            "tokens_cached": answer.usage.cached_tokens,
            "truncated": False,
            "prompt": self._prompt,
            "generation_settings": {"n_predict": -1} | settings | {"seed": answer.seed},
            "timings": timings_object(answer),
            "card": card_object(answer),
        }
        return shown | _probabilities(one.logprobs)


def _probabilities(logprobs: Sequence[Logprob] | None) -> dict[str, Any]:
    if logprobs is None:
        return {}
    shown = [_chosen(each) | {"top_logprobs": [_chosen(top) for top in each.top]} for each in logprobs]
    return {"completion_probabilities": shown}


def _chosen(each: Logprob | TokenChoice) -> dict[str, Any]:
    return given(id=each.token, token=each.text, bytes=list(each.text.encode()), logprob=bounded(each.logprob))


def _parts(shape: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the members at these paths, each under the last name of its path; a member that is not there is absent."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = shape
        *_, name = names = path.split(_NESTED)
        for each in names:
            value = value.get(each) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found
