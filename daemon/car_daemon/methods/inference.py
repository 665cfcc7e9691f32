"""Methods that run on models: generation, decisions, embedding and tokenization."""

from collections.abc import Callable, Sequence
from functools import partial

from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.connections.in_flight import CANCEL
from car_daemon.methods.dispatch import Handler
from car_daemon.models.entry import ModelPool
from car_daemon.requests.answer import CallOrigin
from car_daemon.requests.inference import Inference, with_defaults
from car_protocol.decide import DecideParams
from car_protocol.infer import CancelParams, Empty, InferParams
from car_protocol.status import Why, WhyParams
from car_protocol.text import DetokenizeParams, EmbedParams, RerankParams, TokenizeParams


class InferenceMethods:
    """Handlers that submit work for a connection and cancel it."""

    def __init__(self, inference: Inference, pool: ModelPool) -> None:
        self._inference = inference
        self._pool = pool

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {
            "infer": partial(self.infer, streams=False),
            "infer_stream": partial(self.infer, streams=True),
            CANCEL: self.cancel,
            "decide": self.decide,
            "embed": self.embed,
            "rerank": self.embed,
            "tokenize": self.tokenize,
            "detokenize": self.detokenize,
            "daemon/why": self.why,
        }

    def infer(self, connection: Connection, call: RpcCall, params: InferParams, *, streams: bool) -> None:
        """Submit a request for generation; its answer comes in one piece unless it streams."""
        origin = _origin(connection, call, params.client, params.tenant)
        keys = self._inference.infer(params, origin, call, size=call.size, streams=streams)
        self._pausable(call, keys)

    def superseded(self, connection: Connection, call: RpcCall, params: InferParams) -> int:
        """Return how many requests a request for generation ends."""
        return self._inference.superseded(params, _origin(connection, call, params.client, params.tenant))

    def decide(self, connection: Connection, call: RpcCall, params: DecideParams) -> None:
        """Submit questions about a state."""
        origin = _origin(connection, call, params.client, params.tenant)
        self._pausable(call, self._inference.decide(params, origin, call, size=call.size))

    def embed(self, connection: Connection, call: RpcCall, params: EmbedParams | RerankParams) -> None:
        """Submit texts to embed or to rank."""
        origin = _origin(connection, call, params.client, params.tenant)
        self._pausable(call, self._inference.embed(params, origin, call, size=call.size))

    def cancel(self, connection: Connection, _call: RpcCall, params: CancelParams) -> Empty:
        """Cancel a request of this connection; unknown and ended ids are ignored."""
        connection.requests.cancel(params.id)
        return Empty()

    def tokenize(self, connection: Connection, call: RpcCall, params: TokenizeParams) -> None:
        """Submit a text or a conversation to cut into tokens."""
        entry, tokenization = self._pool.servable(params.model), self._inference.tokenization
        params = with_defaults(params, entry.configured.defaults)
        origin = _origin(connection, call, params.client, params.tenant)
        key = tokenization.tokenize(entry.name, params, origin, call, size=call.size)
        call.work = CallWork(lambda reason: tokenization.cancel(key, reason))

    def detokenize(self, connection: Connection, call: RpcCall, params: DetokenizeParams) -> None:
        """Submit tokens to write out as text."""
        entry, tokenization = self._pool.servable(params.model), self._inference.tokenization
        origin = _origin(connection, call, params.client, params.tenant)
        key = tokenization.detokenize(entry.name, params, origin, call, size=call.size)
        call.work = CallWork(lambda reason: tokenization.cancel(key, reason))

    def why(self, connection: Connection, _call: RpcCall, params: WhyParams) -> Why:
        """Return why tokens of the caller's last prompts were computed again."""
        return Why(self._inference.explanations.of(connection.identity, params.id))

    def _pausable(self, call: RpcCall, keys: Sequence[int]) -> None:
        inference = self._inference

        def each(act: Callable[[int], None]) -> None:
            for key in keys:
                act(key)

        call.work = CallWork(
            cancel=lambda reason: each(lambda key: inference.cancel(key, reason)),
            pause=lambda: each(inference.pause),
            unpause=lambda: each(inference.unpause),
        )


def _origin(connection: Connection, call: RpcCall, client: str | None, tenant: str) -> CallOrigin:
    connection.label = client or connection.label
    connection.tenant = tenant or connection.tenant
    identity, pid = connection.identity, connection.peer.pid
    return CallOrigin(identity, pid, connection.number, call.id, client, call.trace, tenant, call.background)
