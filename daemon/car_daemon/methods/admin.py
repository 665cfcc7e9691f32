"""Methods that drain and reload the daemon, and that cancel requests of other connections."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from car_daemon.config.tables import ConfigError
from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.methods.call_tasks import CallTasks
from car_daemon.methods.dispatch import Handler
from car_daemon.people.identity import Identity
from car_daemon.requests.answer import Responder
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
        reload: Callable[[], Awaitable[None]],
        admins: Callable[[], set[int]],
        connections: Callable[[], Iterable[Connection]],
    ) -> None:
        self._drain = drain
        self._reload = reload
        self._admins = admins
        self._connections = connections
        self._tasks = CallTasks()

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {"daemon/cancel": self.cancel, "daemon/drain": self.drain, "daemon/reload": self.reload}

    def permit(self, identity: Identity) -> None:
        """Raise RpcError `not_permitted` unless the caller may change the daemon, which no person may."""
        if identity.number not in self._admins():
            raise RpcError("not_permitted")

    def cancel(self, connection: Connection, _call: RpcCall, params: CancelOtherParams) -> Empty:
        """Cancel a request of another connection of the same user, for root of any user.

        A person may cancel its own requests alone. Ids that are unknown, or whose request ended, are ignored.
        """
        caller = connection.identity
        for other in self._connections():
            if other.number == params.connection:
                own = caller.person is None and caller.uid in (_ROOT, other.peer.uid)
                if not own and other.requests.identity_of(params.id) not in (None, caller):
                    raise RpcError("not_permitted")
                other.requests.cancel(params.id)
        return Empty()

    def drain(self, connection: Connection, call: RpcCall, params: DrainParams) -> None:
        """Begin a drain, which cannot be stopped; it is answered when all other requests have their answers."""
        self.permit(connection.identity)
        call.work = CallWork(lambda reason: call.error(RpcError(reason)))
        self._drain(None if params.timeout_ms is None else params.timeout_ms / 1000, call)

    def reload(self, connection: Connection, call: RpcCall, _params: NoParams) -> None:
        """Read the configuration again; an invalid one changes nothing and is answered with `invalid_params`."""
        self.permit(connection.identity)
        self._tasks.answer(call, "daemon/reload", self._reloaded())

    async def _reloaded(self) -> Empty:
        try:
            # As a drain it goes on if its client leaves.
            await asyncio.shield(self._reload())
        except ConfigError as error:
            raise invalid_param(error.key) from error
        return Empty()
