"""The daemon's side of placing, with a process in place of the real placer that answers by the model of an order."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from car_base.ipc.placing import Join, Place
from car_daemon.cluster.placer import Placer
from car_daemon.engines.link import NoPlace

# It reports the seats that it joined with, then opens a seat, refuses one, closes its link or does nothing, by model.
PROGRAM = """
import signal, socket, sys
from car_base.ipc.codec import FrameReader, encode_frame
from car_base.ipc.placing import Join, Placed, Unplaced, Waiting, decode_to_placer
daemon, frames = socket.socket(fileno=int(sys.argv[1])), FrameReader()
while data := daemon.recv(1 << 16):
    for message in map(decode_to_placer, frames.feed(data)):
        if isinstance(message, Join):
            seats = message.seats
            continue
        daemon.sendall(encode_frame(Waiting(message.number, f"joined with {seats}")))
        if message.model == "opened":
            seat = dict(node="n1", address="10.0.0.1", port=1, pair=b"", path="/m", content="c")
            daemon.sendall(encode_frame(Placed(number=message.number, **seat)))
        elif message.model == "refused":
            daemon.sendall(encode_frame(Unplaced(number=message.number, why="it is full", node="n1")))
        elif message.model == "leaves":
            daemon.close()
            signal.pause()
"""
JOIN = Join(address="local:1", daemon="d", version="1", schema="s")


class Placing:
    """An order under way; `waiting` is set once the placer has it."""

    def __init__(self, placer: Placer, model: str) -> None:
        self.waiting = asyncio.Event()
        self.why = ""
        order = Place(number=0, model=model, path="/m")
        self.seat = asyncio.create_task(placer.place(order, True, self._wait))

    def _wait(self, why: str) -> None:
        self.why = why
        self.waiting.set()


@asynccontextmanager
async def started() -> AsyncIterator[Placer]:
    placer = Placer(JOIN, time.monotonic, (sys.executable, "-c", PROGRAM))
    try:
        yield placer
    finally:
        await placer.stop()


def pid_of(placer: Placer) -> int:
    pid = placer.status().placer_pid
    assert pid is not None
    return pid


async def test_a_placer_that_is_killed_fails_its_placement_and_the_next_one_has_a_new_process() -> None:
    async with started() as placer:
        first = Placing(placer, "never answered")
        await first.waiting.wait()
        pid = pid_of(placer)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(NoPlace, match="the placer ended with status -9"):
            await first.seat
        assert placer.status().placer_pid is None
        with pytest.raises(NoPlace, match="it is full"):
            await Placing(placer, "refused").seat
        assert pid_of(placer) != pid
        assert list(placer.seats.avoided(time.monotonic())) == ["n1"]


async def test_a_placer_that_closes_its_link_and_ends_later_fails_no_placement_of_the_next_one() -> None:
    async with started() as placer:
        left = Placing(placer, "leaves")
        await left.waiting.wait()
        pid = pid_of(placer)
        while placer.status().placer_pid is not None:  # noqa: ASYNC110 - nothing announces a closed link
            await asyncio.sleep(0.001)
        later = Placing(placer, "never answered")
        await later.waiting.wait()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(NoPlace, match="-9"):
            await left.seat
        assert not later.seat.done()
        later.seat.cancel()


async def test_a_placer_that_connects_early_serves_the_first_placement() -> None:
    async with started() as placer:
        placer.connect()
        placer.connect()
        while placer.status().placer_pid is None:  # noqa: ASYNC110 - nothing announces the process
            await asyncio.sleep(0.001)
        pid = pid_of(placer)
        await Placing(placer, "opened").seat
        assert pid_of(placer) == pid


async def test_a_new_placer_gets_the_numbers_of_the_seats_in_use() -> None:
    async with started() as placer:
        seats = [await Placing(placer, "opened").seat for _ in range(3)]
        placer.close(seats[1])
        last = Placing(placer, "never answered")
        await last.waiting.wait()
        os.kill(pid_of(placer), signal.SIGKILL)
        with pytest.raises(NoPlace, match="ended with status -9"):
            await last.seat
        again = Placing(placer, "opened")
        await again.seat
        assert again.why == "joined with [1, 3]"


async def test_a_placer_that_cannot_be_started_is_a_lack_of_a_place() -> None:
    placer = Placer(JOIN, time.monotonic, ("/no/such/program",))
    with pytest.raises(NoPlace, match="the placer did not start: No such file"):
        await placer.place(Place(number=0, model="m", path="/m"), True)
    await placer.stop()
    early = Placer(JOIN, time.monotonic, ("/no/such/program",))
    early.connect()
    await early.stop()
    assert early.status().reason == "the placer did not start: No such file or directory"
