"""Admission of peers: how many users connect at once."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from car_daemon.connections.fair_queue import FairQueue
from car_daemon.connections.server import Server
from car_daemon.sockets.peer import Peer
from car_protocol.limits import Limits
from tests.daemon.connections.pairs import FakeHandler, request

OWNERS = (0, os.getuid())


class Users:
    """A server whose next peer is of the user that the test names."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._uid = 0
        self._clients: list[socket.socket] = []
        handler = FakeHandler()
        self.server = Server(
            limits,
            [11, 12, 13],
            handler.call,
            handler.refused,
            FairQueue(),
            read_peer=lambda _: Peer(self._uid, 1),
        )

    async def refusal(self, uid: int) -> dict[str, Any] | None:
        """Connect a user; return the data of the refusal, None where the user is served."""
        loop = asyncio.get_running_loop()
        self._uid = uid
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._clients.append(client)
        client.setblocking(False)
        await loop.sock_connect(client, str(self._path))
        with suppress(BrokenPipeError):  # of a client that was refused already
            await loop.sock_sendall(client, request("do", 1))
        answer = json.loads(await loop.sock_recv(client, 4096))
        return answer["error"]["data"] if "error" in answer else None

    def leave(self) -> None:
        """Close the connection that came first."""
        self._clients.pop(0).close()

    async def close(self) -> None:
        """Close all clients and the server."""
        while self._clients:
            self.leave()
        await self.server.close(1)


@asynccontextmanager
async def users(folder: Path, limits: Limits) -> AsyncIterator[Users]:
    """Yield users of a server that listens in this folder."""
    path = folder / "server.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen()
        all_of_them = Users(path, limits)
        all_of_them.server.start(listener)
        yield all_of_them
        await all_of_them.close()


async def test_a_user_beyond_the_bound_is_refused_with_both_numbers_until_another_leaves(tmp_path: Path) -> None:
    async with users(tmp_path, Limits(max_users=2)) as all_of_them:
        assert [await all_of_them.refusal(uid) for uid in (11, 12)] == [None, None]
        assert await all_of_them.refusal(13) == {
            "reason": "limit",
            "retryable": False,
            "started": False,
            "limit": "max_users",
            "value": 2,
            "users": 3,
        }
        all_of_them.leave()
        while await all_of_them.refusal(13) is not None:
            pass


async def test_the_bound_of_users_refuses_neither_connected_users_nor_the_daemon_s_owners(tmp_path: Path) -> None:
    async with users(tmp_path, Limits(max_users=1)) as all_of_them:
        assert [await all_of_them.refusal(uid) for uid in (11, 11, *OWNERS)] == [None] * 4
        assert await all_of_them.refusal(12) is not None
