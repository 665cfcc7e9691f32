"""Permissions to drain, to reload and to cancel requests."""

import asyncio
import json
from typing import Any, cast

import pytest

from car_daemon.config.tables import ConfigError
from car_daemon.connections.call import CallWork, RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.connections.memory_share import ClientMemoryLimit, MemoryShare
from car_daemon.connections.outbound import OutboundBuffer
from car_daemon.methods.admin import Administration
from car_daemon.people.identity import Identity
from car_daemon.sockets.peer import Peer
from car_protocol.envelope import Id
from car_protocol.errors import RpcError
from car_protocol.infer import NoParams
from car_protocol.limits import Limits
from car_protocol.status import CancelOtherParams, Drained, DrainParams

ROOT, OWN, ADMIN, OTHER = 0, 1000, 1001, 1002


def outbound() -> OutboundBuffer:
    """Return a buffer of a client that reads."""
    return OutboundBuffer(
        Limits(), lambda measure: MemoryShare(ClientMemoryLimit(), lambda: (-1, 0), measure, lambda: None)
    )


class FakeConnection:
    """A connection of a user, with one request that remembers why it was cancelled."""

    def __init__(self, number: int, uid: int) -> None:
        self.number = number
        self.peer = Peer(uid, 1)
        self.identity = Identity(uid)
        self.cancelled: list[str] = []
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self.call = RpcCall("a", 0, self._respond, outbound())
        self.call.work = CallWork(self.cancelled.append)
        self.requests = self

    def _respond(self, _call: RpcCall, response: bytes) -> None:
        self.responses.put_nowait(json.loads(response))

    def identity_of(self, _request_id: Id) -> Identity:
        return self.identity

    def cancel(self, request_id: Id) -> None:
        if request_id == self.call.id:
            self.call.cancel("cancelled")


class World:
    """A connection of each user, and what was done for them."""

    def __init__(self, fault: ConfigError | None = None) -> None:
        self.drained: list[float | None] = []
        self.reloaded = 0
        self._fault = fault
        self.connections = {uid: FakeConnection(uid + 1, uid) for uid in (ROOT, OWN, ADMIN, OTHER)}
        self.methods = Administration(
            drain=lambda seconds, _reply: self.drained.append(seconds),
            reload=self.reload,
            admins=lambda: {ROOT, OWN, ADMIN},
            connections=lambda: cast(list[Connection], list(self.connections.values())),
        ).table()

    async def reload(self) -> None:
        if self._fault is not None:
            raise self._fault
        self.reloaded += 1

    def call(self, uid: int, method: str, params: Any) -> Any:
        connection = self.connections[uid]
        return self.methods[method](cast(Connection, connection), connection.call, params)

    def refused(self, uid: int, method: str, params: Any) -> RpcError:
        with pytest.raises(RpcError) as caught:
            self.call(uid, method, params)
        return caught.value


@pytest.mark.parametrize("uid", [ROOT, OWN, ADMIN])
async def test_the_daemons_user_root_and_administrators_drain_and_reload(uid: int) -> None:
    world = World()
    world.call(uid, "daemon/drain", DrainParams(timeout_ms=1500))
    world.call(uid, "daemon/drain", DrainParams())
    world.call(uid, "daemon/reload", NoParams())
    assert (await world.connections[uid].responses.get())["result"] == {}
    assert (world.drained, world.reloaded) == ([1.5, None], 1)


def test_a_cancelled_drain_call_is_answered_and_the_drain_goes_on() -> None:
    world = World()
    ended: list[Any] = []
    call = RpcCall("a", 0, lambda _, response: ended.append(json.loads(response)), outbound())
    world.connections[OWN].call = call
    world.call(OWN, "daemon/drain", DrainParams())
    call.cancel("cancelled")
    call.result(Drained(1, 0))
    assert [response["error"]["code"] for response in ended] == [-32800]
    assert world.drained == [None]


@pytest.mark.parametrize(("method", "params"), [("daemon/drain", DrainParams()), ("daemon/reload", NoParams())])
def test_others_may_not(method: str, params: Any) -> None:
    world = World()
    assert world.refused(OTHER, method, params).reason == "not_permitted"
    assert (world.drained, world.reloaded) == ([], 0)


@pytest.mark.parametrize(("uid", "of"), [(OTHER, OTHER), (ROOT, OTHER), (OWN, OWN)])
def test_a_user_cancels_its_own_requests_and_root_any(uid: int, of: int) -> None:
    world = World()
    world.call(uid, "daemon/cancel", CancelOtherParams(connection=of + 1, id="a"))
    assert [connection.cancelled for connection in world.connections.values() if connection.cancelled] == [
        ["cancelled"]
    ]
    assert world.connections[of].cancelled


@pytest.mark.parametrize(("uid", "of"), [(OTHER, OWN), (ADMIN, OTHER), (OWN, ROOT)])
def test_other_users_do_not_cancel_them(uid: int, of: int) -> None:
    world = World()
    error = world.refused(uid, "daemon/cancel", CancelOtherParams(connection=of + 1, id="a"))
    assert (error.reason, world.connections[of].cancelled) == ("not_permitted", [])


def test_connections_and_requests_that_are_not_there_are_ignored() -> None:
    world = World()
    world.call(OWN, "daemon/cancel", CancelOtherParams(connection=77, id="a"))
    world.call(OWN, "daemon/cancel", CancelOtherParams(connection=OWN + 1, id="b"))
    assert not any(connection.cancelled for connection in world.connections.values())


async def test_a_configuration_that_cannot_be_used_is_an_error_that_names_the_key() -> None:
    world = World(ConfigError("text of the file", "queue.limit"))
    world.call(OWN, "daemon/reload", NoParams())
    error = (await world.connections[OWN].responses.get())["error"]
    assert (error["code"], error["data"]["param"]) == (-32602, "queue.limit")
