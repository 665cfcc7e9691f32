"""The method that reports usage, from the ledger."""

from collections.abc import Callable

from car_daemon.connections.call import RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.ledger.ledger import Ledger
from car_daemon.methods.call_tasks import CallTasks
from car_daemon.methods.dispatch import Handler
from car_protocol.usage import UsageParams


class UsageMethods:
    """Handler of `daemon/usage`: the numbers `admins` get the rows of all, every other identity its own."""

    def __init__(self, ledger: Ledger, admins: Callable[[], set[int]]) -> None:
        self._ledger = ledger
        self._admins = admins
        self._tasks = CallTasks()

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {"daemon/usage": self.usage}

    def usage(self, connection: Connection, call: RpcCall, params: UsageParams) -> None:
        """Report what requests took."""
        identity = connection.identity
        seen = None if identity.number in self._admins() else identity.name
        self._tasks.answer(call, "daemon/usage", self._ledger.report(params, seen))
