"""The client for code without an event loop."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from car_client import calls
from car_client.calls import Ask
from car_client.options import Conversation, InferOptions
from car_client.paths import usable_paths
from car_client.session import Exchange
from car_client.stream import Stream
from car_client.watch import StatusWatch
from car_client.wire import Wire, open_wire
from car_protocol.answer import Answer
from car_protocol.capacity import Capacity
from car_protocol.embed import Embeddings, Ranking
from car_protocol.envelope import Id
from car_protocol.models import LoadProgress, Model
from car_protocol.status import Status

T = TypeVar("T")


class Client:
    """One connection to the daemon, made on first use and again after a loss. Not thread-safe.

    Without a daemon a request raises DaemonUnavailable at once; so does one whose connection is lost, and
    nothing is sent twice.
    """

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        self._paths = usable_paths(path)
        # Mutable state: the connection, None before the first use.
        self._wire: Wire | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def capacity(self) -> int:
        """How many requests the default model runs at once, as the daemon declared it; 1 until it has."""
        return info.capacity if (info := self.capacity_info) else 1

    @property
    def capacity_info(self) -> Capacity | None:
        """The whole capacity object as last sent; None without a connection."""
        if self._wire is None or not self._wire.open:
            return None
        self._wire.drain()
        return self._wire.session.capacity_info

    def connect(self) -> None:
        """Wait for the daemon and its capacity of now, which is 1 while its model loads."""
        self.read_capacity()

    def close(self) -> None:
        """End the connection; the next use makes another."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def infer(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tokens: Sequence[int] | None = None,
        **options: Unpack[InferOptions],
    ) -> Answer:
        """Return the answer to one of prompt, messages and tokens; an interrupt cancels the request."""
        return self._ask(calls.infer("infer", prompt, messages, tokens, options))

    def infer_stream(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tokens: Sequence[int] | None = None,
        **options: Unpack[InferOptions],
    ) -> Stream:
        """Return the answer as an iterator of chunks; it is sent with the first step."""
        ask = calls.infer("infer_stream", prompt, messages, tokens, options)
        return Stream(lambda: self._begin(ask))

    def cancel(self, stream: Stream) -> None:
        """Ask the daemon to end a stream: what it sent before still comes, then RequestCancelled."""
        stream.cancel()

    def tokenize(
        self, text: str, *, model: str | None = None, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Return the model's tokens for a text."""
        return self._ask(calls.tokenize(text, model, add_special, parse_special)).tokens

    def detokenize(self, tokens: Sequence[int], *, model: str | None = None, special: bool = False) -> str:
        """Return the text of tokens; with `special` control tokens are written out."""
        return self._ask(calls.detokenize(tokens, model, special)).text

    def embed(
        self,
        texts: Sequence[str],
        *,
        model: str | None = None,
        normalize: bool = True,
        traceparent: str | None = None,
    ) -> Embeddings:
        """Return a vector for each of 1 to 256 texts, of length 1 unless `normalize` is false."""
        return self._ask(calls.embed(texts, model, normalize, traceparent))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        model: str | None = None,
        top_n: int | None = None,
        traceparent: str | None = None,
    ) -> Ranking:
        """Return the documents by their indexes, the one that answers the query best first; `top_n` keeps the best."""
        return self._ask(calls.rerank(query, documents, model, top_n, traceparent))

    def models(self) -> list[Model]:
        """Return what the daemon can serve, the default model first."""
        return self._ask(calls.models()).models

    def load_model(self, name: str, progress: Callable[[LoadProgress], None]) -> Model:
        """Have a model loaded and return its entry once it is served; an interrupt ends the waiting, not the load."""
        return self._ask(calls.load_model(name, progress))

    def status(self) -> Status:
        """Return what the daemon is doing now."""
        return self._ask(calls.status())

    def watch_status(self, interval_s: float = 1.0) -> StatusWatch:
        """Return the status again and again, as an iterator that begins with its first step."""
        return StatusWatch(self._connected, self._ask, interval_s)

    def metrics(self) -> str:
        """Return the daemon's figures as text in the format of Prometheus."""
        return (self._ask(calls.metrics())).text

    def cancel_request(self, connection: int, request: Id) -> None:
        """End a request of another connection, as `status` names it; it has to be this user's own."""
        self._ask(calls.cancel(connection, request))

    def read_capacity(self, model: str | None = None) -> Capacity:
        """Ask for a model's capacity now, with the counts of this moment."""
        return self._ask(calls.capacity(model))

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Call any method and return its result as plain data."""
        return self._ask(Ask(method, dict(params or {}), object))

    def _begin(self, ask: Ask[Any]) -> tuple[Wire, Exchange]:
        wire = self._connected()
        return wire, wire.session.begin(ask.method, ask.params, loading=ask.loading)

    def _ask(self, ask: Ask[T]) -> T:
        return self._finish(*self._begin(ask), ask.result)

    def _finish(self, wire: Wire, exchange: Exchange, kind: type[T]) -> T:
        try:
            wire.send(exchange.frame)
            wire.wait(exchange)
        except BaseException:
            wire.cancel(exchange)
            raise
        return exchange.read(kind)

    def _connected(self) -> Wire:
        if self._wire is not None and self._wire.open:
            self._wire.drain()
        if self._wire is None or not self._wire.open:
            self.close()
            self._wire = open_wire(self._paths)
        return self._wire
