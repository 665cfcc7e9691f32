"""Methods for the few who may change the daemon itself, and for users who cancel what their other programs run."""

from collections.abc import Callable, Iterable

from car_daemon.config_tables import ConfigError
from car_daemon.connection import Connection
from car_daemon.dispatch import Handler
from car_daemon.exchange import Exchange, Work
from car_daemon.peer import Peer
from car_daemon.pending import Reply
from car_protocol.admin import CancelOtherParams, DrainParams
from car_protocol.errors import RpcError
from car_protocol.infer import Empty, NoParams
from car_protocol.params import invalid_param

_ROOT = 0


class Administration:
    """`admins` are the users who may drain and reload."""

    def __init__(
        self,
        *,
        drain: Callable[[float | None, Reply], None],
        reload: Callable[[], None],
        admins: Callable[[], set[int]],
        connections: Callable[[], Iterable[Connection]],
    ) -> None:
        self._drain = drain
        self._reload = reload
        self._admins = admins
        self._connections = connections

    def table(self) -> dict[str, Handler]:
        """Return the handler of every method."""
        return {"daemon/cancel": self.cancel, "daemon/drain": self.drain, "daemon/reload": self.reload}

    def permit(self, peer: Peer) -> None:
        """Raise RpcError `not_permitted` unless the peer may change the daemon."""
        if peer.uid not in self._admins():
            raise RpcError("not_permitted")

    def cancel(self, connection: Connection, _exchange: Exchange, params: CancelOtherParams) -> Empty:
        """Cancel a request of another connection of the same user; unknown ones are ignored."""
        for other in self._connections():
            if other.number == params.connection:
                if connection.peer.uid not in (_ROOT, other.peer.uid):
                    raise RpcError("not_permitted")
                if (found := other.in_flight.get(params.id)) is not None:
                    found.cancel("cancelled")
        return Empty()

    def drain(self, connection: Connection, exchange: Exchange, params: DrainParams) -> None:
        """Have the daemon finish and end; the answer comes when all others have theirs. Nothing stops it any more."""
        self.permit(connection.peer)
        exchange.work = Work(lambda reason: exchange.error(RpcError(reason)))
        self._drain(None if params.timeout_ms is None else params.timeout_ms / 1000, exchange)

    def reload(self, connection: Connection, _exchange: Exchange, _params: NoParams) -> Empty:
        """Read the configuration again; one that cannot be used changes nothing."""
        self.permit(connection.peer)
        try:
            self._reload()
        except ConfigError as error:
            raise invalid_param(error.key) from error
        return Empty()
