"""The client for asyncio."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from car_client import calls
from car_client.async_stream import AsyncStream
from car_client.async_watch import AsyncStatusWatch
from car_client.calls import Ask
from car_client.connection import Reply
from car_client.link import Link, Pause
from car_client.options import Conversation, InferOptions
from car_client.paths import usable_paths
from car_protocol.answer import Answer
from car_protocol.capacity import Capacity
from car_protocol.embed import Embeddings, Ranking
from car_protocol.envelope import Id
from car_protocol.models import LoadProgress, Model
from car_protocol.status import Status

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0


class AsyncClient:
    """One connection to the daemon, kept in the background from the first use on, for one event loop.

    It may be made before there is a daemon. A request waits `connect_timeout` seconds for a connection and
    then raises DaemonUnavailable; so does one whose connection is lost, and nothing is sent twice.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._link = Link(usable_paths(path), pause)
        self._pause = pause
        self._connect_timeout = connect_timeout

    async def __aenter__(self) -> Self:
        self._link.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def capacity(self) -> int:
        """How many requests the default model runs at once, as the daemon declared it; 1 until it has."""
        return self._link.connection.session.capacity if self._link.connection else 1

    @property
    def capacity_info(self) -> Capacity | None:
        """The whole capacity object as last seen; None without a daemon."""
        return self._link.connection.session.capacity_info if self._link.connection else None

    async def connect(self) -> None:
        """Wait for the daemon and its capacity of now, which is 1 while its model loads."""
        await self.read_capacity()

    async def close(self) -> None:
        """End the connection; what is in flight raises DaemonUnavailable and is cancelled."""
        await self._link.close()

    async def infer(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tokens: Sequence[int] | None = None,
        **options: Unpack[InferOptions],
    ) -> Answer:
        """Return the answer to one of prompt, messages and tokens; cancelling the task cancels the request."""
        return await self._ask(calls.infer("infer", prompt, messages, tokens, options))

    def infer_stream(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tokens: Sequence[int] | None = None,
        **options: Unpack[InferOptions],
    ) -> AsyncStream:
        """Return the answer as an async iterator of chunks; it is sent with the first step."""
        ask = calls.infer("infer_stream", prompt, messages, tokens, options)
        return AsyncStream(lambda: self._send(ask))

    def cancel(self, stream: AsyncStream) -> None:
        """Ask the daemon to end a stream: what it sent before still comes, then RequestCancelled."""
        stream.cancel()

    async def tokenize(
        self, text: str, *, model: str | None = None, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Return the model's tokens for a text."""
        return (await self._ask(calls.tokenize(text, model, add_special, parse_special))).tokens

    async def detokenize(self, tokens: Sequence[int], *, model: str | None = None, special: bool = False) -> str:
        """Return the text of tokens; with `special` control tokens are written out."""
        return (await self._ask(calls.detokenize(tokens, model, special))).text

    async def embed(
        self,
        texts: Sequence[str],
        *,
        model: str | None = None,
        normalize: bool = True,
        traceparent: str | None = None,
    ) -> Embeddings:
        """Return a vector for each of 1 to 256 texts, of length 1 unless `normalize` is false."""
        return await self._ask(calls.embed(texts, model, normalize, traceparent))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        model: str | None = None,
        top_n: int | None = None,
        traceparent: str | None = None,
    ) -> Ranking:
        """Return the documents by their indexes, the one that answers the query best first; `top_n` keeps the best."""
        return await self._ask(calls.rerank(query, documents, model, top_n, traceparent))

    async def models(self) -> list[Model]:
        """Return what the daemon can serve, the default model first."""
        return (await self._ask(calls.models())).models

    async def load_model(self, name: str, progress: Callable[[LoadProgress], None]) -> Model:
        """Have a model loaded and return its entry once it is served; cancelling ends the waiting, not the load."""
        return await self._ask(calls.load_model(name, progress))

    async def status(self) -> Status:
        """Return what the daemon is doing now."""
        return await self._ask(calls.status())

    def watch_status(self, interval_s: float = 1.0) -> AsyncStatusWatch:
        """Return the status again and again, as an iterator that begins with its first step."""
        return AsyncStatusWatch(lambda: self._link.ready(self._connect_timeout), self._ask, interval_s, self._pause)

    async def metrics(self) -> str:
        """Return the daemon's figures as text in the format of Prometheus."""
        return (await self._ask(calls.metrics())).text

    async def cancel_request(self, connection: int, request: Id) -> None:
        """End a request of another connection, as `status` names it; it has to be this user's own."""
        await self._ask(calls.cancel(connection, request))

    async def read_capacity(self, model: str | None = None) -> Capacity:
        """Ask for a model's capacity now, with the counts of this moment."""
        return await self._ask(calls.capacity(model))

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Call any method and return its result as plain data."""
        return await self._ask(Ask(method, dict(params or {}), object))

    async def _send(self, ask: Ask[Any]) -> Reply:
        return Reply(await self._link.ready(self._connect_timeout), ask)

    async def _ask(self, ask: Ask[T]) -> T:
        reply = await self._send(ask)
        try:
            await reply.change()
        except asyncio.CancelledError:
            reply.cancel()
            raise
        return reply.exchange.read(ask.result)
