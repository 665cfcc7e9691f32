"""Methods that drain and reload the daemon, and that cancel requests of other connections."""

from collections.abc import Callable, Iterable

from car_daemon.config.tables import ConfigError
from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.methods.dispatch import Handler
from car_daemon.requests.answer import Responder
from car_daemon.sockets.peer import Peer
from car_protocol.errors import RpcError
from car_protocol.infer import Empty, NoParams
from car_protocol.params import invalid_param
from car_protocol.status import CancelOtherParams, DrainParams

_ROOT = 0


class Administration:
    """Handlers that change the daemon itself.

    The users `admins` may drain and reload: root, the daemon's own user and the configured `admin_uids`.
    """

    def __init__(
        self,
        *,
        drain: Callable[[float | None, Responder], None],
        reload: Callable[[], None],
        admins: Callable[[], set[int]],
        connections: Callable[[], Iterable[Connection]],
    ) -> None:
        self._drain = drain
        self._reload = reload
        self._admins = admins
        self._connections = connections

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {"daemon/cancel": self.cancel, "daemon/drain": self.drain, "daemon/reload": self.reload}

    def permit(self, peer: Peer) -> None:
        """Raise RpcError `not_permitted` unless the peer may change the daemon."""
        if peer.uid not in self._admins():
            raise RpcError("not_permitted")

    def cancel(self, connection: Connection, _call: RpcCall, params: CancelOtherParams) -> Empty:
        """Cancel a request of another connection of the same user, for root of any user; unknown ids are ignored."""
        for other in self._connections():
            if other.number == params.connection:
                if connection.peer.uid not in (_ROOT, other.peer.uid):
                    raise RpcError("not_permitted")
                other.requests.cancel(params.id)
        return Empty()

    def drain(self, connection: Connection, call: RpcCall, params: DrainParams) -> None:
        """Begin a drain, which cannot be stopped; it is answered when all other requests have their answers."""
        self.permit(connection.peer)
        call.work = CallWork(lambda reason: call.error(RpcError(reason)))
        self._drain(None if params.timeout_ms is None else params.timeout_ms / 1000, call)

    def reload(self, connection: Connection, _call: RpcCall, _params: NoParams) -> Empty:
        """Read the configuration again; an invalid one changes nothing and raises RpcError `invalid_params`."""
        self.permit(connection.peer)
        try:
            self._reload()
        except ConfigError as error:
            raise invalid_param(error.key) from error
        return Empty()
