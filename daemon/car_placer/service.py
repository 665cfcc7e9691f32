"""The placer process without Ray: the daemon's orders in, frames out, each order a task of its own."""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from car_base.ipc.codec import FrameReader, encode_frame
from car_base.ipc.placing import (
    Apart,
    EndEngine,
    FromSeat,
    Join,
    Nodes,
    Place,
    ToPlacer,
    Unplaced,
    Waiting,
    decode_to_placer,
)
from car_placer.shortage import NoNode, NotConnected

if TYPE_CHECKING:
    # It imports Ray, which takes seconds and may be missing.
    from car_placer.ray_cluster import RayCluster

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
# The daemon kills a placer a second after it closed the link.
_TAKE_BACK_S = 1.0


def end_with(daemon: socket.socket, end: Callable[[int], object] = os._exit) -> None:
    """Have the process end once its daemon closes the socket, or dies; seats of unanswered orders end by themselves.

    A thread waits for the socket, because the event loop may be in a call of Ray that blocks. On Linux the kernel ends
    the process at the daemon's death, because such a call may stop all threads.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    poll = select.poll()
    # A descriptor of its own, because the event loop closes the other one. A hangup is reported whatever is asked for.
    poll.register(os.dup(daemon.fileno()), 0)
    if poll.poll(0):
        # It died before the kernel was told.
        end(0)
    threading.Thread(target=_watch, args=(poll, end), name="hangup", daemon=True).start()


def _watch(poll: "select.poll", end: Callable[[int], object]) -> None:
    poll.poll()
    # For the orders under way to be taken back.
    time.sleep(_TAKE_BACK_S)
    end(0)


_READ_BYTES = 1 << 16


# Connects to a cluster; may block. Raises NotConnected.
Connect = Callable[[Join], "RayCluster"]


class Service:
    """Serves one daemon over a socket until that closes it; `nodes` are looked at every `nodes_s` seconds."""

    def __init__(self, daemon: socket.socket, connect: Connect, *, nodes_s: float = 3.0) -> None:
        self._daemon = daemon
        self._connect = connect
        self._nodes_s = nodes_s
        self._orders: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> int:
        """Return the exit status: 1 if there is no connection to the cluster."""
        reader, writer = await asyncio.open_unix_connection(sock=self._daemon)
        try:
            return await self._serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        frames = _frames(reader)
        join = await anext(frames, None)
        if join is None:
            return 0
        assert isinstance(join, Join)
        try:
            cluster = await asyncio.to_thread(self._connect, join)
        except NotConnected as apart:
            writer.write(encode_frame(Apart(str(apart))))
            return 1
        watch = asyncio.create_task(self._watch(cluster, writer), name="nodes")
        try:
            async for message in frames:
                self._obey(message, cluster, writer)
        finally:
            await _cancelled([watch, *self._orders.values()])
        return 0

    def _obey(self, message: Struct, cluster: "RayCluster", writer: asyncio.StreamWriter) -> None:
        match message:
            case Place():
                task = asyncio.create_task(self._place(message, cluster, writer), name=f"order {message.number}")
                self._orders[message.number] = task
                task.add_done_callback(lambda _: self._orders.pop(message.number, None))
            case EndEngine():
                if (order := self._orders.get(message.number)) is not None:
                    order.cancel()

    async def _place(self, order: Place, cluster: "RayCluster", writer: asyncio.StreamWriter) -> None:
        def wait(why: str) -> None:
            writer.write(encode_frame(Waiting(order.number, why)))

        try:
            answer: FromSeat = await cluster.open(order, wait)
        except NoNode as none:
            answer = Unplaced(number=order.number, why=str(none), node=none.node)
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds, and the daemon would wait for an answer
            answer = Unplaced(number=order.number, why=f"the placer failed: {type(error).__name__}: {error}")
        writer.write(encode_frame(answer))

    async def _watch(self, cluster: "RayCluster", writer: asyncio.StreamWriter) -> None:
        """Send the nodes now, and again whenever they change."""
        sent: Nodes | None = None
        while True:
            nodes = await asyncio.to_thread(cluster.nodes)
            if nodes != sent:
                writer.write(encode_frame(nodes))
                sent = nodes
            await asyncio.sleep(self._nodes_s)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[ToPlacer]:
    """Yield the daemon's frames until it closes."""
    frames = FrameReader()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            for body in frames.feed(data):
                yield decode_to_placer(body)


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and return once they ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
