"""`tokenize` and `detokenize` on their way to an engine and back."""

from collections.abc import Iterator

from msgspec import Struct

from car_daemon.answer import Reply
from car_daemon.engine import frames
from car_daemon.models.link import Engine
from car_protocol.errors import RpcError
from car_protocol.text import DetokenizeParams, Text, TokenizeParams, Tokens


class _Lookup(Struct):
    """One question; `engine` is None while no engine of the model is up."""

    model: str
    message: frames.Tokenize | frames.Detokenize
    reply: Reply
    engine: int | None = None


class Lookups:
    """Questions that need no lease; those for a model that loads wait for it."""

    def __init__(self, keys: Iterator[int]) -> None:
        self._keys = keys
        # Mutable state: the questions without an answer by key, and the engine of each model that is up.
        self._open: dict[int, _Lookup] = {}
        self._engines: dict[str, tuple[int, Engine]] = {}

    def tokenize(self, model: str, params: TokenizeParams, reply: Reply) -> int:
        """Have text cut into tokens; return the key that cancels it."""
        key = next(self._keys)
        return self._ask(model, frames.Tokenize(key, params.text, params.add_special, params.parse_special), reply)

    def detokenize(self, model: str, params: DetokenizeParams, reply: Reply) -> int:
        """Have tokens written out; return the key that cancels it."""
        return self._ask(model, frames.Detokenize(next(self._keys), params.tokens, params.special), reply)

    def answered(self, message: frames.TokenIds | frames.PlainText) -> None:
        """Pass an engine's answer on, if it is still wanted."""
        lookup = self._open.pop(message.key, None)
        if lookup is not None:
            answer = Tokens(message.tokens) if isinstance(message, frames.TokenIds) else Text(message.text)
            lookup.reply.result(answer)

    def cancel(self, key: int, reason: str = "cancelled") -> None:
        """Answer a question with an error; unknown and finished ones are ignored."""
        if key in self._open:
            self._end([key], reason)

    def refuse_all(self, reason: str) -> None:
        """Answer every open question with an error."""
        self._end(list(self._open), reason)

    def refused(self, message: frames.Refused) -> bool:
        """Pass an engine's refusal on; False where it is about no question."""
        lookup = self._open.pop(message.key, None)
        if lookup is None:
            return False
        lookup.reply.error(RpcError(message.reason, **message.data))
        return True

    def engine_ready(self, model: str, engine: int, link: Engine) -> None:
        """Ask what waited for the model."""
        self._engines[model] = (engine, link)
        for lookup in self._open.values():
            if lookup.model == model and lookup.engine is None:
                self._send(lookup, engine, link)

    def engine_lost(self, engine: int) -> None:
        """Answer what the engine was asked: it may be what killed it, so it is not asked again."""
        self._engines = {model: up for model, up in self._engines.items() if up[0] != engine}
        self._end([key for key, lookup in self._open.items() if lookup.engine == engine], "engine_lost")

    def model_failed(self, model: str) -> None:
        """Answer what waited for a model that cannot be served."""
        self._end([key for key, lookup in self._open.items() if lookup.model == model], "model_unavailable")

    def _ask(self, model: str, message: frames.Tokenize | frames.Detokenize, reply: Reply) -> int:
        lookup = self._open[message.key] = _Lookup(model, message, reply)
        if model in self._engines:
            self._send(lookup, *self._engines[model])
        return message.key

    def _send(self, lookup: _Lookup, engine: int, link: Engine) -> None:
        lookup.engine = engine
        link.send(lookup.message)

    def _end(self, keys: list[int], reason: str) -> None:
        for key in keys:
            self._open.pop(key).reply.error(RpcError(reason))
