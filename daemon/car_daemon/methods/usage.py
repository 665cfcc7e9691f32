"""The method that reports usage, from the ledger."""

import asyncio
from collections.abc import Callable

from car_base.host import defects
from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.ledger.ledger import Ledger
from car_daemon.methods.dispatch import Handler
from car_protocol.errors import RpcError
from car_protocol.usage import UsageParams


class UsageMethods:
    """Handler of `daemon/usage`: the numbers `admins` get the rows of all, every other identity its own."""

    def __init__(self, ledger: Ledger, admins: Callable[[], set[int]]) -> None:
        self._ledger = ledger
        self._admins = admins
        self._tasks: set[asyncio.Task[None]] = set()

    def table(self) -> dict[str, Handler]:
        """Return the handlers by method."""
        return {"daemon/usage": self.usage}

    def usage(self, connection: Connection, call: RpcCall, params: UsageParams) -> None:
        """Report what requests took."""
        identity = connection.identity
        seen = None if identity.number in self._admins() else identity.name
        task = asyncio.create_task(self._answer(call, params, seen), name="usage report")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel(reason: str) -> None:
            task.cancel()
            call.error(RpcError(reason))

        call.work = CallWork(cancel)

    async def _answer(self, call: RpcCall, params: UsageParams, identity: str | None) -> None:
        try:
            call.result(await self._ledger.report(params, identity))
        except RpcError as error:
            call.error(error)
        except Exception as error:  # noqa: BLE001 - the call would never be answered
            defects.report("call.failed", error, method="daemon/usage")
            call.error(RpcError("internal_error"))
