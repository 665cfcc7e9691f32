"""Calls whose answers come from tasks of the event loop."""

import asyncio
from collections.abc import Awaitable

from msgspec import Struct

from car_base.host import defects
from car_daemon.connections.call import CallWork, RpcCall
from car_protocol.errors import RpcError


class CallTasks:
    """Tasks that each answer one call; a cancelled call ends its task."""

    def __init__(self) -> None:
        # The loop itself keeps weak references alone.
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(self, call: RpcCall, method: str, result: Awaitable[Struct]) -> None:
        """Answer with the result, or with the RpcError that is raised in its place."""
        task = asyncio.create_task(self._answer(call, method, result), name=method)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel(reason: str) -> None:
            task.cancel()
            call.error(RpcError(reason))

        call.work = CallWork(cancel)

    async def _answer(self, call: RpcCall, method: str, result: Awaitable[Struct]) -> None:
        try:
            call.result(await result)
        except RpcError as error:
            call.error(error)
        except Exception as error:  # noqa: BLE001 - the call would never be answered
            defects.report("call.failed", error, method=method)
            call.error(RpcError("internal_error"))
