"""`tokenize` and `detokenize` on their way to an engine and back."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from car_daemon.engine import frames
from car_daemon.models.link import Engine
from car_daemon.pending import Reply
from car_daemon.scheduler.recovery import QUARANTINED
from car_protocol.errors import RpcError
from car_protocol.limits import QUEUE_MAX_BYTES
from car_protocol.text import DetokenizeParams, Text, TokenizeParams, Tokens


class _Lookup(Struct):
    """One question of `size` bytes; `engine` is None while none is up, `reply` once answered; `died_with` counts."""

    model: str
    message: frames.Tokenize | frames.Detokenize
    size: int
    reply: Reply | None
    engine: int | None = None
    died_with: int = 0


class Lookups:
    """Questions that need no lease, of `max_bytes` in all, none any more in a drain; those for a model that loads wait.

    `arrived` and `left` hear of a model with one more and one less.
    """

    def __init__(
        self,
        keys: Iterator[int],
        *,
        max_bytes: Callable[[], int] = lambda: QUEUE_MAX_BYTES,
        draining: Callable[[], bool] = lambda: False,
        arrived: Callable[[str], None] = lambda _: None,
        left: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._keys = keys
        self._arrived = arrived
        self._left = left
        self._max_bytes = max_bytes
        self._draining = draining
        # Mutable state: the questions that wait or are with an engine by key, also those that
        # were answered with an error meanwhile; their bytes; and the engines of each model that are up, by number.
        self._open: dict[int, _Lookup] = {}
        self._bytes = 0
        self._engines: dict[str, dict[int, Engine]] = {}

    def __len__(self) -> int:
        """Return how many questions wait or are with an engine."""
        return len(self._open)

    def tokenize(self, model: str, params: TokenizeParams, reply: Reply, size: int = 0) -> int:
        """Have text cut into tokens; return the key that cancels it. Raises RpcError in a drain or for too much."""
        key = next(self._keys)
        message = frames.Tokenize(key, params.text, params.add_special, params.parse_special)
        return self._ask(_Lookup(model, message, size, reply))

    def detokenize(self, model: str, params: DetokenizeParams, reply: Reply, size: int = 0) -> int:
        """Have tokens written out; return the key that cancels it. Raises RpcError in a drain or for too much."""
        message = frames.Detokenize(next(self._keys), params.tokens, params.special)
        return self._ask(_Lookup(model, message, size, reply))

    def answered(self, message: frames.TokenIds | frames.PlainText) -> None:
        """Pass an engine's answer on, if it is still wanted."""
        lookup = self._close(message.key)
        if lookup is not None and lookup.reply is not None:
            answer = Tokens(message.tokens) if isinstance(message, frames.TokenIds) else Text(message.text)
            lookup.reply.result(answer)

    def cancel(self, key: int, reason: str = "cancelled") -> None:
        """Answer a question with an error; it counts until its engine is done with it. Unknown ones are ignored."""
        lookup = self._open.get(key)
        if lookup is None or lookup.reply is None:
            return
        if lookup.engine is None:
            self._close(key)
        reply, lookup.reply = lookup.reply, None
        reply.error(RpcError(reason))

    def refuse_all(self, reason: str) -> None:
        """Answer every open question with an error."""
        for key in list(self._open):
            self.cancel(key, reason)

    def refused(self, message: frames.Refused) -> bool:
        """Pass an engine's refusal on; False where it is about no question."""
        lookup = self._close(message.key)
        if lookup is not None and lookup.reply is not None:
            lookup.reply.error(RpcError(message.reason, **message.data))
        return lookup is not None

    def engine_ready(self, model: str, engine: int, link: Engine) -> None:
        """Ask what waited for the model."""
        self._engines.setdefault(model, {})[engine] = link
        self._ask_open(model)

    def engine_lost(self, engine: int) -> None:
        """Have another engine asked what this one was, once: it may be what killed it."""
        for engines in self._engines.values():
            engines.pop(engine, None)
        lost = [lookup for lookup in self._open.values() if lookup.engine == engine]
        for lookup in lost:
            lookup.engine = None
            lookup.died_with += 1
        over = [lookup.message.key for lookup in lost if lookup.reply is None or lookup.died_with > 1]
        self._end(over, "engine_lost", QUARANTINED)
        for model in {lookup.model for lookup in lost}:
            self._ask_open(model)

    def model_failed(self, model: str, data: dict[str, Any] | None = None) -> None:
        """Answer what waited for a model that cannot be served."""
        self._end([key for key, lookup in self._open.items() if lookup.model == model], "model_unavailable", data or {})

    def close(self, model: str) -> None:
        """Have what is asked from now on wait for another engine of the model."""
        self._engines.pop(model, None)

    def busy(self, model: str) -> bool:
        """Tell whether a question about a model is open."""
        return any(lookup.model == model for lookup in self._open.values())

    def engaged(self, model: str) -> bool:
        """Tell whether the engine of a model was asked something."""
        return any(lookup.model == model and lookup.engine is not None for lookup in self._open.values())

    def _ask(self, lookup: _Lookup) -> int:
        if self._draining():
            raise RpcError("draining")
        most = self._max_bytes()
        if self._bytes and self._bytes + lookup.size > most:
            raise RpcError("limit", limit="queue_max_bytes", value=most)
        self._bytes += lookup.size
        self._open[lookup.message.key] = lookup
        try:
            self._send(lookup)
        except Exception:
            self._close(lookup.message.key)
            raise
        self._arrived(lookup.model)
        return lookup.message.key

    def _ask_open(self, model: str) -> None:
        for lookup in self._open.values():
            if lookup.model == model and lookup.engine is None:
                self._send(lookup)

    def _send(self, lookup: _Lookup) -> None:
        """Ask an engine of the model, where one is up."""
        engines = self._engines.get(lookup.model)
        if engines:
            lookup.engine, link = next(iter(engines.items()))
            link.send(lookup.message)

    def _end(self, keys: list[int], reason: str, data: dict[str, Any]) -> None:
        for key in keys:
            lookup = self._close(key)
            if lookup is not None and lookup.reply is not None:
                lookup.reply.error(RpcError(reason, **data))

    def _close(self, key: int) -> _Lookup | None:
        lookup = self._open.pop(key, None)
        if lookup is not None:
            self._bytes -= lookup.size
            self._left(lookup.model)
        return lookup
