"""What HTTP servers are asked, and what their events say: OpenAI's completions, and llama-server's own."""

from typing import Any

import msgspec
from msgspec import Struct

from car_client.carctl.load.request import Request

COMPLETION = "/completion"
COMPLETIONS = "/v1/completions"
# Greedy, and only that: llama-server's samplers otherwise sort the vocabulary first.
_GREEDY = {"temperature": 0, "samplers": ["temperature"]}


class _Usage(Struct, frozen=True):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None


class _Choice(Struct, frozen=True):
    text: str = ""


class Event(Struct, frozen=True):
    """The members that matter of either dialect's events."""

    content: str = ""
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    stop: bool = False
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    @property
    def has_text(self) -> bool:
        """Whether it holds a piece of the answer."""
        return bool(self.content) or any(choice.text for choice in self.choices)

    @property
    def tokens(self) -> int | None:
        """How many tokens the answer has, where it is said."""
        return self.usage.completion_tokens if self.usage else self.tokens_predicted if self.stop else None

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the prompt has, where it is said."""
        return self.usage.prompt_tokens if self.usage else self.tokens_evaluated if self.stop else None


decode_event = msgspec.json.Decoder(Event).decode


def body(path: str, request: Request, options: dict[str, Any]) -> dict[str, Any]:
    """Return what to send to a path; `options` are those of the daemon's own requests that these servers know."""
    common: dict[str, Any] = {"prompt": request.prompt, "stream": True, "ignore_eos": True}
    common |= {name: value for name, value in options.items() if name in ("model", "cache_prompt")}
    if options.get("temperature") == 0:
        common |= _GREEDY
    if path.endswith(COMPLETION):
        return {**common, "n_predict": request.max_tokens}
    return {**common, "max_tokens": request.max_tokens, "stream_options": {"include_usage": True}}
