"""Requests and events of two dialects: OpenAI's completions, and llama-server's own."""

from typing import Any

import msgspec
from msgspec import Struct

from car_client.carctl.load.request import Request

COMPLETION = "/completion"
COMPLETIONS = "/v1/completions"
# With its default samplers llama-server sorts the vocabulary before greedy sampling.
_GREEDY = {"temperature": 0, "samplers": ["temperature"]}


class _Usage(Struct, frozen=True):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None


class _Choice(Struct, frozen=True):
    text: str = ""


class Event(Struct, frozen=True):
    """The members of either dialect's events that a load reads."""

    content: str = ""
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    stop: bool = False
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    @property
    def has_text(self) -> bool:
        """Return whether the event has a piece of the answer."""
        return bool(self.content) or any(choice.text for choice in self.choices)

    @property
    def tokens(self) -> int | None:
        """The answer's length in tokens, None where the event lacks it."""
        return self.usage.completion_tokens if self.usage else self.tokens_predicted if self.stop else None

    @property
    def prompt_tokens(self) -> int | None:
        """The prompt's length in tokens, None where the event lacks it."""
        return self.usage.prompt_tokens if self.usage else self.tokens_evaluated if self.stop else None


decode_event = msgspec.json.Decoder(Event).decode


def body(path: str, request: Request, options: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request to a path, with the `options` that these servers have."""
    common: dict[str, Any] = {"prompt": request.prompt, "stream": True, "ignore_eos": True}
    common |= {name: value for name, value in options.items() if name in ("model", "cache_prompt")}
    if options.get("temperature") == 0:
        common |= _GREEDY
    if path.endswith(COMPLETION):
        return {**common, "n_predict": request.max_tokens}
    return {**common, "max_tokens": request.max_tokens, "stream_options": {"include_usage": True}}
