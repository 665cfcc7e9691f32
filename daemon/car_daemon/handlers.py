"""What each method does."""

from functools import cache
from typing import Any

from car_daemon.connection import Connection
from car_daemon.dispatch import CANCEL, Handler, cancel_request
from car_daemon.exchange import Exchange, Work
from car_daemon.inference import Inference
from car_daemon.metrics import Metrics
from car_daemon.models.pool import ModelPool
from car_daemon.pending import Owner
from car_daemon.periodic import Periodic
from car_daemon.reports import Reports
from car_protocol.capacity import Capacity, CapacityParams
from car_protocol.embed import EmbedParams, RerankParams
from car_protocol.infer import CancelParams, Empty, InferParams, NoParams
from car_protocol.methods import STATUS_CHANGED
from car_protocol.models import Models
from car_protocol.openrpc import describe
from car_protocol.status import Status, StatusParams
from car_protocol.text import DetokenizeParams, Text, TokenizeParams


@cache
def _described() -> dict[str, Any]:
    return describe()


class Handlers:
    """One method of this class for each method of the contract."""

    def __init__(self, inference: Inference, pool: ModelPool, reports: Reports, metrics: Metrics) -> None:
        self._inference = inference
        self._pool = pool
        self._reports = reports
        self._metrics = metrics

    def table(self) -> dict[str, Handler]:
        """Return the handler of every method."""
        return {
            "inference/capacity": self.capacity,
            "infer": self.infer,
            "infer_stream": self.infer_stream,
            CANCEL: self.cancel,
            "embed": self.texts,
            "rerank": self.texts,
            "tokenize": self.tokenize,
            "detokenize": self.detokenize,
            "models/list": self.models,
            "daemon/status": self.status,
            "daemon/metrics": self.metrics,
            "rpc.discover": self.discover,
        }

    def capacity(self, connection: Connection, _exchange: Exchange, params: CapacityParams) -> Capacity:
        """Answer at once, always; start or end the subscription."""
        entry = self._pool.named(params.model)
        if params.subscribe is True:
            connection.subscriptions.add(entry.name)
        elif params.subscribe is False:
            connection.subscriptions.discard(entry.name)
        return self._reports.capacity(entry)

    def infer(self, connection: Connection, exchange: Exchange, params: InferParams) -> None:
        """Start a request that is answered in one piece."""
        self._start(connection, exchange, params, streams=False)

    def infer_stream(self, connection: Connection, exchange: Exchange, params: InferParams) -> None:
        """Start a request that is answered piece by piece."""
        self._start(connection, exchange, params, streams=True)

    def texts(self, connection: Connection, exchange: Exchange, params: EmbedParams | RerankParams) -> None:
        """Have texts embedded or ranked."""
        key = self._inference.texts(params, _owner(connection, exchange, None), exchange, size=exchange.size)
        self._leased(exchange, key)

    def cancel(self, connection: Connection, _exchange: Exchange, params: CancelParams) -> Empty:
        """Cancel a request of this connection."""
        cancel_request(connection, params)
        return Empty()

    def tokenize(self, _connection: Connection, exchange: Exchange, params: TokenizeParams) -> None:
        """Have text cut into tokens."""
        entry = self._pool.servable(params.model)
        self._cancellable(exchange, self._inference.lookups.tokenize(entry.name, params, exchange, exchange.size))

    def detokenize(self, _connection: Connection, exchange: Exchange, params: DetokenizeParams) -> None:
        """Have tokens written out."""
        entry = self._pool.servable(params.model)
        self._cancellable(exchange, self._inference.lookups.detokenize(entry.name, params, exchange, exchange.size))

    def models(self, _connection: Connection, _exchange: Exchange, _params: NoParams) -> Models:
        """List the models."""
        return Models([self._reports.model(entry) for entry in self._pool])

    def status(self, connection: Connection, _exchange: Exchange, params: StatusParams) -> Status:
        """Describe the daemon to this peer; start or end the subscription."""
        if params.subscribe is True:
            connection.repeat(Periodic(params.interval_ms / 1000, lambda: self._tell_status(connection)))
        elif params.subscribe is False:
            connection.repeat(None)
        return self._reports.status(connection.peer)

    def _tell_status(self, connection: Connection) -> None:
        """Tell a connection the status, unless it has not read what it was told before."""
        if not connection.blocked:
            connection.notify(STATUS_CHANGED, self._reports.status(connection.peer))

    def metrics(self, _connection: Connection, _exchange: Exchange, _params: NoParams) -> Text:
        """Return what is counted, for Prometheus."""
        return Text(self._metrics.text())

    def discover(self, _connection: Connection, _exchange: Exchange, _params: NoParams) -> dict[str, Any]:
        """Describe the contract."""
        return _described()

    def _cancellable(self, exchange: Exchange, key: int) -> None:
        exchange.work = Work(lambda reason: self._inference.lookups.cancel(key, reason))

    def _start(self, connection: Connection, exchange: Exchange, params: InferParams, *, streams: bool) -> None:
        connection.label = params.client or connection.label
        owner = _owner(connection, exchange, params.client)
        key = self._inference.infer(params, owner, exchange, size=exchange.size, streams=streams)
        self._leased(exchange, key)

    def _leased(self, exchange: Exchange, key: int) -> None:
        exchange.work = Work(
            cancel=lambda reason: self._inference.cancel(key, reason),
            hold=lambda: self._inference.hold(key),
            release=lambda: self._inference.release(key),
        )


def _owner(connection: Connection, exchange: Exchange, client: str | None) -> Owner:
    peer = connection.peer
    return Owner(peer.uid, peer.pid, connection.number, exchange.id, client, exchange.trace)
