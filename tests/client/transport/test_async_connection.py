"""An asyncio connection whose daemon has ended it: the reason is read, whatever the client sends meanwhile."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from car_client.errors import CardError, LimitReached
from car_client.transport.async_connection import AsyncConnection
from car_http.daemon.connection import DaemonConnection
from car_protocol.envelope import Failure, encode_message
from car_protocol.errors import RpcError

REFUSAL = encode_message(Failure(None, RpcError("limit", limit="max_connections", value=1024).as_object()))
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, Any]], Any]


async def refused(connect: Callable[[asyncio.Event], asyncio.Protocol], write: Callable[[Any], None]) -> Any:
    """Return a connection that a daemon refused, and that was written to before the refusal was read."""
    lost = asyncio.Event()
    ours, theirs = socket.socketpair()
    _, connection = await asyncio.get_running_loop().create_unix_connection(lambda: connect(lost), sock=ours)
    theirs.sendall(REFUSAL)
    theirs.close()
    write(connection)
    await lost.wait()
    return connection


@LOOPS
def test_a_client_that_sends_before_it_reads_is_told_why_it_is_refused(run: Run) -> None:
    async def loss() -> CardError | None:
        connection = await refused(lambda lost: AsyncConnection(lost.set), lambda connection: connection.write(b"{}\n"))
        found: CardError | None = connection.session.loss
        return found

    assert isinstance(run(loss()), LimitReached)


@LOOPS
def test_a_door_that_sends_before_it_reads_is_told_why_it_is_refused(run: Run) -> None:
    async def events() -> None:
        connection = await refused(
            lambda lost: DaemonConnection(lambda _: lost.set()), lambda connection: connection.begin("infer", {})
        )
        await connection.events()

    with pytest.raises(LimitReached):
        run(events())
