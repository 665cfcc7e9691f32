"""Methods that describe the daemon: status, metrics and the contract."""

from collections.abc import Callable
from functools import cache
from typing import Any

from car_daemon.connections.call import RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.connections.fair_queue import FairQueue
from car_daemon.methods.dispatch import Handler
from car_daemon.methods.status_report import StatusFeed, UserView
from car_daemon.telemetry.metrics import Metrics
from car_protocol.infer import NoParams
from car_protocol.methods import describe
from car_protocol.status import Status, StatusParams
from car_protocol.text import Text


class StatusMethods:
    """Handlers that describe the daemon and its contract."""

    def __init__(self, view: UserView, metrics: Metrics, fair_queue: FairQueue, admins: Callable[[], set[int]]) -> None:
        self._view = view
        self._metrics = metrics
        self._admins = admins
        self._feed = StatusFeed(fair_queue, view.encoder)

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {"daemon/status": self.status, "daemon/metrics": self.metrics, "rpc.discover": self.discover}

    def status(self, connection: Connection, _call: RpcCall, params: StatusParams) -> Status:
        """Return the status; start or end the connection's subscription."""
        if params.subscribe is True:
            self._feed.add(connection.push, connection.identity, params.interval_ms / 1000)
            connection.subscriptions.end_status = lambda: self._feed.remove(connection.push)
        elif params.subscribe is False:
            connection.subscriptions.end_status()
        return self._view.status(connection.identity)

    def metrics(self, connection: Connection, _call: RpcCall, _params: NoParams) -> Text:
        """Return the metrics in Prometheus' text format; administrators also get usage, which names apps."""
        return Text(self._metrics.text(usage=connection.identity.number in self._admins()))

    def discover(self, _connection: Connection, _call: RpcCall, _params: NoParams) -> dict[str, Any]:
        """Return the contract as an OpenRPC document."""
        return _openrpc()


@cache
def _openrpc() -> dict[str, Any]:
    return describe()
