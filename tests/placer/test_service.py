"""The placer process without Ray: orders in, answers out, against a cluster that obeys the test."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from msgspec import Struct

from car_base.ipc.codec import FrameReader, encode_frame
from car_base.ipc.placing import (
    Apart,
    EndEngine,
    FromPlacer,
    Join,
    Node,
    Nodes,
    Place,
    Placed,
    Unplaced,
    Waiting,
    decode_from_placer,
)
from car_placer.service import Connect, Service
from car_placer.shortage import NoNode, NotConnected
from tests.pace import HANG_S

JOIN = Join(address="10.0.0.1:6379", daemon="d", version="1", schema="s")
NODES = Nodes(ray="2.60.0", nodes=[Node("n", "10.0.0.2", True, 8.0, 1.0)])


def placed(number: int) -> Placed:
    return Placed(number=number, node="n", address="10.0.0.2", port=1, pair=b"p", path="/m", content="c")


def order(number: int) -> Place:
    return Place(number=number, model="m", path="/m")


class FakeCluster:
    """A cluster whose orders wait for the test."""

    def __init__(self) -> None:
        self.found = NODES
        self.answers: dict[int, asyncio.Future[Placed]] = {}
        self.ordered: asyncio.Queue[int] = asyncio.Queue()
        self.cancelled: list[int] = []

    def nodes(self) -> Nodes:
        return self.found

    async def open(self, order: Place, waits: Callable[[str], None]) -> Placed:
        self.answers[order.number] = asyncio.get_running_loop().create_future()
        waits("a CPU")
        self.ordered.put_nowait(order.number)
        try:
            return await self.answers[order.number]
        except asyncio.CancelledError:
            self.cancelled.append(order.number)
            raise


class Daemon:
    """The other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: asyncio.Task[int]) -> None:
        self.reader = reader
        self.writer = writer
        self.served = served
        self.frames = FrameReader()
        self.received: list[FromPlacer] = []

    def send(self, *messages: Struct) -> None:
        self.writer.write(b"".join(map(encode_frame, messages)))

    async def next(self) -> FromPlacer:
        while not self.received:
            data = await self.reader.read(1 << 16)
            assert data, "the placer closed the socket"
            self.received += map(decode_from_placer, self.frames.feed(data))
        return self.received.pop(0)


@asynccontextmanager
async def serving(connect: Callable[[Join], FakeCluster], nodes_s: float = 60.0) -> AsyncIterator[Daemon]:
    ours, theirs = socket.socketpair()
    served = asyncio.create_task(Service(theirs, cast(Connect, connect), nodes_s=nodes_s).run())
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    async with asyncio.timeout(HANG_S):
        yield Daemon(reader, writer, served)
        writer.close()
        await served
        # The transport closes with the next turn of the loop.
        await asyncio.sleep(0)


async def test_orders_that_come_with_the_first_frame_are_answered_in_any_order() -> None:
    cluster = FakeCluster()
    async with serving(lambda _: cluster) as daemon:
        daemon.send(JOIN, order(1), order(2))
        assert [await cluster.ordered.get(), await cluster.ordered.get()] == [1, 2]
        first = [await daemon.next() for _ in range(3)]
        assert sorted(map(str, first)) == sorted(map(str, [NODES, Waiting(1, "a CPU"), Waiting(2, "a CPU")]))
        cluster.answers[2].set_result(placed(2))
        assert await daemon.next() == placed(2)
        cluster.answers[1].set_exception(NoNode("card 1 there, 2 here", "n"))
        assert await daemon.next() == Unplaced(number=1, why="card 1 there, 2 here", node="n")


async def test_an_order_that_is_taken_back_and_those_of_a_daemon_that_is_gone_leave_no_seat() -> None:
    cluster = FakeCluster()
    async with serving(lambda _: cluster) as daemon:
        daemon.send(JOIN, order(1), order(2))
        await cluster.ordered.get()
        await cluster.ordered.get()
        daemon.send(EndEngine(1), EndEngine(9))
        daemon.writer.close()
        assert await daemon.served == 0
    assert cluster.cancelled == [1, 2]


async def test_a_cluster_that_cannot_be_joined_is_reported_before_the_end() -> None:
    def connect(join: Join) -> FakeCluster:
        raise NotConnected(f"no Ray head answers at {join.address}: start it")

    async with serving(connect) as daemon:
        daemon.send(JOIN, order(1))
        assert await daemon.next() == Apart("no Ray head answers at 10.0.0.1:6379: start it")
        assert await daemon.served == 1


async def test_an_error_of_ray_fails_its_order_alone() -> None:
    cluster = FakeCluster()
    async with serving(lambda _: cluster) as daemon:
        daemon.send(JOIN, order(1))
        await cluster.ordered.get()
        cluster.answers[1].set_exception(ValueError("bad label"))
        answers = [await daemon.next() for _ in range(3)]
        assert Unplaced(number=1, why="the placer failed: ValueError: bad label") in answers
        daemon.send(order(2))
        assert await cluster.ordered.get() == 2


async def test_nodes_are_sent_again_when_they_change_only() -> None:
    cluster = FakeCluster()
    async with serving(lambda _: cluster, nodes_s=0.01) as daemon:
        daemon.send(JOIN)
        assert await daemon.next() == NODES
        cluster.found = Nodes(ray="2.60.0", nodes=[])
        assert await daemon.next() == cluster.found
        assert daemon.received == []


@pytest.mark.parametrize("frames", [[], [JOIN]])
async def test_a_daemon_that_goes_at_once_ends_the_placer(frames: list[Struct]) -> None:
    async with serving(lambda _: FakeCluster()) as daemon:
        daemon.send(*frames)
        daemon.writer.close()
        assert await daemon.served == 0
