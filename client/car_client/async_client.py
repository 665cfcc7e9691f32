"""The client for asyncio."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from car_client import calls
from car_client.async_stream import AsyncStream
from car_client.async_watch import AsyncStatusWatch
from car_client.calls import CallSpec
from car_client.errors import CardError
from car_client.options import Conversation, DecideOptions, InferOptions, TokenizeOptions
from car_client.paths import usable_paths
from car_client.results import Answer, Decision, Model, ModelDetails, Status
from car_client.retry import CONNECT_TIMEOUT_S, MAX_RETRIES, NEVER, Deadline, Retries
from car_client.transport.async_connection import AsyncConnection, AsyncReconnector, AsyncReply, Pause
from car_protocol.decide import Question
from car_protocol.envelope import Id
from car_protocol.models import LoadProgress
from car_protocol.status import Drained, Why
from car_protocol.text import Embeddings, Ranking

T = TypeVar("T")


class AsyncClient:
    """One connection to the daemon, kept in the background from the first call on, for one event loop.

    The client may be made before there is a daemon, and finds it again after a restart.

    A call is sent again up to `max_retries` times if its error is `retryable`, or if the connection was lost before
    anything of the answer came: after the daemon's `retry_after_ms`, of at most 10 s, or after pauses of 0.25 s, 0.5 s
    and so on. Never sent again are a stream that delivered a chunk, requests with `wait=False`, `queue=False` or
    `supersede`, requests whose own deadline passed, calls that change the daemon, and `call`.
    A connection has at most 64 requests in flight: the client sends further requests as answers come, in their order.

    Raises:
        RequestError: From every call: an error that the daemon answered. Methods name the classes to expect.
        DaemonUnavailable: From every call: no daemon answered within `connect_timeout`, or the connection was lost.
        RequestTimeout: From every call: no answer came within `timeout`.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        timeout: float | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        max_retries: int = MAX_RETRIES,
        pause: Pause = asyncio.sleep,
    ) -> None:
        """Remember the settings; `async with` or the first call connects.

        Args:
            path: The daemon's socket; by default `CAR_SOCKET`, then this user's and the system's.
            timeout: Seconds that a call may take, retries included, and a stream to its next chunk; None has no end.
                A call that takes longer is cancelled at the daemon and raises RequestTimeout.
            connect_timeout: Seconds that a call waits for a connection, within `timeout`; 0 waits for one attempt.
            max_retries: How often a call is sent again; 0 sends everything once.
            pause: Waits for a number of seconds; for tests.

        Raises:
            BadSocketPath: The path is longer than the platform allows.
        """
        self._reconnector = AsyncReconnector(usable_paths(path), pause)
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._max_retries = max_retries

    async def __aenter__(self) -> Self:
        self._reconnector.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def capacity(self) -> int:
        """The number of requests of the default model that run at once; reading it costs no request.

        The daemon sends it at the start of a connection and after every change; 1 until it did, and without a
        connection. `status().capacity` explains it, `models()` has the figures of other models.
        """
        connection = self._reconnector.connection
        return connection.session.capacity if connection else 1

    async def connect(self) -> None:
        """Wait until the daemon has answered; `capacity` is its figure then, which is 1 while its model loads.

        Raises:
            RequestError: The daemon refused the connection.
        """
        await self._request(calls.capacity())

    async def aclose(self) -> None:
        """End the connection for good; calls in flight or in a pause raise DaemonUnavailable and are cancelled."""
        await self._reconnector.aclose()

    async def infer(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tokens: Sequence[int] | None = None,
        **options: Unpack[InferOptions],
    ) -> Answer:
        """Return the answer to one of prompt, messages and tokens; cancelling the task cancels the request.

        Args:
            prompt: A text to continue.
            messages: A conversation, which the model's chat template renders.
            tokens: Token ids, taken as they are.
            **options: Members of InferOptions, such as `max_tokens`, `temperature` and `json_schema`.

        Raises:
            InvalidParams: An option is unknown, ill-typed or out of range; `param` names it.
            ModelUnavailable: The model is unknown, failed to load, or lacks an ability.
            ContextExceeded: The prompt leaves no room for an answer in the context.
            Overloaded: The queue is full, or no sequence is free with `wait=False`.
            DeadlineExceeded: `timeout_ms` or `queue_timeout_ms` passed before the first token.
            RequestCancelled: The request was cancelled by its user, or superseded.
            EngineLost: The engine died while it served the request.
            LimitReached: The request is longer than a frame may be.
            Draining: The daemon is ending.
        """
        return await self._request(calls.infer("infer", prompt, messages, tokens, options))

    def infer_stream(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tokens: Sequence[int] | None = None,
        **options: Unpack[InferOptions],
    ) -> AsyncStream:
        """Return the answer as an asynchronous iterator of chunks; the request is sent with the first step.

        Args:
            prompt: A text to continue.
            messages: A conversation, which the model's chat template renders.
            tokens: Token ids, taken as they are.
            **options: Members of InferOptions, such as `max_tokens`, `temperature` and `json_schema`.

        Raises:
            CardError: From the steps of the iterator: the errors of `infer`, and SlowReader if the chunks were read
                too slowly.
        """
        spec = calls.infer("infer_stream", prompt, messages, tokens, options)
        return AsyncStream(
            lambda deadline: self._begin(spec, deadline), self._retries(spec), self._timeout, self._reconnector.pause
        )

    async def decide(
        self, state: Any, questions: Sequence[Question | Mapping[str, Any]], **options: Unpack[DecideOptions]
    ) -> Decision:
        """Return the answers to typed questions about one state, as probabilities; nothing is written.

        Args:
            state: What the questions are about: a text, messages, or any other JSON value.
            questions: 1 to 400 objects of Choice, Score and Predicate, or the same as plain data, such as
                `{"type": "predicate", "name": "angry", "instructions": "Is the customer angry?"}`.
            **options: Members of DecideOptions, such as `model`, `reproducible` and `orders`.

        Raises:
            InvalidParams: A question is ill-formed, or has more options than the model has labels; `param` is its path.
            ModelUnavailable: The model is unknown, failed to load, or cannot decide.
            ContextExceeded: The state with the longest question does not fit the context; `param` names that question.
            Overloaded: The queue is full, or no sequence is free with `wait=False`.
            DeadlineExceeded: `timeout_ms` or `queue_timeout_ms` passed.
            RequestCancelled: The request was cancelled by its user.
            EngineLost: The engine died twice while it served the request.
            LimitReached: The request is longer than a frame may be.
            Draining: The daemon is ending.
        """
        return await self._request(calls.decide(state, questions, options))

    async def tokenize(
        self, text: str | None = None, *, messages: Conversation | None = None, **options: Unpack[TokenizeOptions]
    ) -> list[int]:
        """Return the model's tokens for a text, or for a conversation the tokens of the prompt that `infer` computes.

        Args:
            text: The text to tokenize.
            messages: A conversation, which the model's chat template renders.
            **options: Members of TokenizeOptions, such as `model`, `add_special` and `tools`.

        Raises:
            InvalidParams: An option is unknown, ill-typed or out of range; `param` names it.
            ModelUnavailable: The model is unknown, failed to load, or has no chat template.
        """
        return (await self._request(calls.tokenize(text, messages, options))).tokens

    async def count_tokens(
        self, text: str | None = None, *, messages: Conversation | None = None, **options: Unpack[TokenizeOptions]
    ) -> int:
        """Return the number of tokens that `tokenize` returns, which do not cross the socket.

        Args:
            text: The text to tokenize.
            messages: A conversation, which the model's chat template renders.
            **options: Members of TokenizeOptions, such as `model`, `add_special` and `tools`.

        Raises:
            InvalidParams: An option is unknown, ill-typed or out of range; `param` names it.
            ModelUnavailable: The model is unknown, failed to load, or has no chat template.
        """
        return (await self._request(calls.count_tokens(text, messages, options))).count

    async def detokenize(self, tokens: Sequence[int], *, model: str | None = None, special: bool = False) -> str:
        """Return the text of tokens; bytes that are not UTF-8 become U+FFFD.

        Args:
            tokens: Token ids of the model.
            model: A name of `models`; None is the default model.
            special: Write control tokens out too.

        Raises:
            ModelUnavailable: The model is unknown or failed to load.
            InvalidParams: A token is not one of the model's.
        """
        return (await self._request(calls.detokenize(tokens, model, special))).text

    async def embed(
        self,
        texts: Sequence[str],
        *,
        model: str | None = None,
        normalize: bool = True,
        truncate: bool = False,
        traceparent: str | None = None,
    ) -> Embeddings:
        """Return a vector for each text.

        Args:
            texts: 1 to 256 texts; they share one lease.
            model: A name of `models`; None is the default model.
            normalize: Scale each vector to length 1.
            truncate: Use the beginning of a text that is too long, in place of ContextExceeded.
            traceparent: W3C trace context, for the daemon's log.

        Raises:
            ModelUnavailable: The model is unknown, failed to load, or cannot embed.
            ContextExceeded: A text is too long.
            Overloaded: The queue is full.
        """
        return await self._request(calls.embed(texts, model, normalize, truncate, traceparent))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        model: str | None = None,
        top_n: int | None = None,
        traceparent: str | None = None,
    ) -> Ranking:
        """Return the documents by their indexes, the one that answers the query best first.

        Args:
            query: The text that the documents are compared with.
            documents: 1 to 256 texts.
            model: A name of `models`; None is the default model.
            top_n: Return this many of the best; None returns all.
            traceparent: W3C trace context, for the daemon's log.

        Raises:
            ModelUnavailable: The model is unknown, failed to load, or cannot rank.
            ContextExceeded: A document is too long beside the query.
            Overloaded: The queue is full.
        """
        return await self._request(calls.rerank(query, documents, model, top_n, traceparent))

    async def models(self) -> list[Model]:
        """Return the models that the daemon can serve, the default one first."""
        return (await self._request(calls.models())).models

    async def show_model(self, name: str) -> ModelDetails:
        """Return a model's entry with the header of its file and an estimate of its memory; nothing is loaded.

        Args:
            name: A name of `models`.

        Raises:
            ModelUnavailable: There is no such model.
        """
        return await self._request(calls.show_model(name))

    async def load_model(self, name: str, progress: Callable[[LoadProgress], None] | None = None) -> Model:
        """Load a model and return its entry once it is served; cancelling or a timeout ends the waiting alone.

        Args:
            name: A name of `models`.
            progress: Called with the bytes of the file that are loaded, again and again.

        Raises:
            NotPermitted: The caller is not an administrator of the daemon.
            ModelUnavailable: The model is unknown, cannot be loaded, or there is no room for it.
        """
        return await self._request(calls.load_model(name, progress))

    async def unload_model(self, name: str) -> Model:
        """Unload a model and return its entry once its work is done and it is gone.

        Args:
            name: A name of `models`.

        Raises:
            NotPermitted: The caller is not an administrator of the daemon.
            ModelUnavailable: There is no such model.
        """
        return await self._request(calls.unload_model(name))

    async def status(self) -> Status:
        """Return a snapshot of the daemon's work."""
        return await self._request(calls.status())

    def watch_status(self, interval_s: float = 1.0) -> AsyncStatusWatch:
        """Return an asynchronous iterator of snapshots; its first step subscribes, and `aclose` ends that.

        Args:
            interval_s: Seconds between two snapshots, 0.1 to 60.

        Raises:
            CardError: From the steps of the iterator: the errors of `status`.
        """
        return AsyncStatusWatch(
            lambda: self._connected(NEVER), self._request, interval_s, self._timeout, self._reconnector.pause
        )

    async def metrics(self) -> str:
        """Return the daemon's figures in the text format of Prometheus."""
        return (await self._request(calls.metrics())).text

    async def why(self, request: Id | None = None) -> Why:
        """Return how much of this user's last prompts was computed, and why; the newest prompt first.

        Args:
            request: The id of one request; None for all that are remembered.
        """
        return await self._request(calls.why(request))

    async def cancel_request(self, connection: int, request: Id) -> None:
        """Cancel a request of another connection of this user; a request that has ended is ignored.

        Args:
            connection: The number of the connection, as `status` names it.
            request: The id of the request, as `status` names it.

        Raises:
            NotPermitted: The request is another user's.
        """
        await self._request(calls.cancel(connection, request))

    async def drain(self, timeout_ms: int | None = None) -> Drained:
        """End the daemon once the requests that run and wait are answered; return how many were.

        Args:
            timeout_ms: Milliseconds after which the rest is refused; None is the daemon's own setting.

        Raises:
            NotPermitted: The caller is not an administrator of the daemon.
            RequestTimeout: No answer came within `timeout`; the daemon drains all the same.
        """
        return await self._request(calls.drain(timeout_ms))

    async def reload(self) -> None:
        """Have the daemon read its configuration again.

        Raises:
            NotPermitted: The caller is not an administrator of the daemon.
            InvalidParams: The file cannot be used, and nothing changed; `param` names the key.
        """
        await self._request(calls.reload())

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Call any method of the protocol and return its result as plain data.

        Args:
            method: The name of the method, such as `inference/capacity`.
            params: Its params.
        """
        return await self._request(calls.raw(method, params))

    async def _request(self, spec: CallSpec[T]) -> T:
        deadline, retries = Deadline(self._timeout), self._retries(spec)
        while True:
            try:
                reply = await self._begin(spec, deadline)
                try:
                    await reply.send(deadline)
                    await reply.wait(deadline)
                except BaseException:
                    reply.cancel()
                    raise
                return reply.call.read(spec.result)
            except CardError as error:
                pause_s = retries.pause_s(error, deadline)
            await self._reconnector.pause(pause_s)

    async def _begin(self, spec: CallSpec[Any], deadline: Deadline) -> AsyncReply:
        return AsyncReply(await self._connected(deadline), spec)

    async def _connected(self, deadline: Deadline) -> AsyncConnection:
        return await self._reconnector.ready(deadline.bound(self._connect_timeout))

    def _retries(self, spec: CallSpec[Any]) -> Retries:
        return Retries(self._max_retries if spec.repeatable else 0)
