"""What is held for all clients together: who has most goes, and only for too much."""

import asyncio
import json
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from car_daemon.held import HeldBytes, Share
from car_daemon.peer import Peer
from tests.daemon.conftest import Run
from tests.daemon.connections import Done, Pair, batch_of, connections, request


class Holder:
    """A place that holds what the test says, for a process of its own."""

    def __init__(self, held: HeldBytes, pid: int = 1) -> None:
        self.bytes = 0
        self.dropped = False
        self.share = Share(held, Peer(uid=0, pid=pid), lambda: self.bytes, self._drop)

    def hold(self, size: int) -> None:
        """Hold so much from now on."""
        self.bytes = size
        self.share.changed()

    def _drop(self) -> None:
        self.dropped, self.bytes = True, 0
        self.share.changed()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=50))
def test_all_together_are_what_each_holds_and_never_too_much(events: list[tuple[int, int]]) -> None:
    held = HeldBytes(most=100)
    holders = [Holder(held, pid=number // 2) for number in range(5)]
    for number, size in events:
        others = sum(holder.bytes for holder in holders if holder is not holders[number])
        for holder in holders:
            holder.dropped = False
        holders[number].hold(size)
        assert held.total == sum(holder.bytes for holder in holders) <= 100
        assert any(holder.dropped for holder in holders) == (size + others > 100)


def test_who_holds_most_goes_whoever_asks_for_more() -> None:
    held = HeldBytes(most=100)
    small, large = Holder(held, 1), Holder(held, 2)
    large.hold(60)
    small.hold(40)
    assert not large.dropped
    small.hold(41)
    assert (small.dropped, large.dropped, held.total) == (False, True, 41)


def test_a_process_with_many_small_shares_goes_before_one_with_a_larger_one() -> None:
    held = HeldBytes(most=100)
    many, honest = [Holder(held, 1) for _ in range(9)], Holder(held, 2)
    for holder in many:
        holder.hold(8)
    honest.hold(40)
    assert (sum(holder.dropped for holder in many), honest.dropped) == (2, False)


def test_who_has_read_since_is_not_taken_for_the_largest() -> None:
    held = HeldBytes(most=100)
    reader, other = Holder(held, 1), Holder(held, 2)
    reader.hold(90)
    reader.bytes = 5
    other.hold(60)
    assert (reader.dropped, other.dropped, held.total) == (False, False, 65)


def test_a_frame_that_was_begun_counts_until_it_ends(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes()
        async with connections(held=held) as all_of_them:
            pair = await all_of_them.connect()
            frame = request("do", 1)
            pair.writer.write(frame + frame[:20])
            await pair.receive()
            assert held.total == 20
            pair.writer.write(frame[20:])
            await pair.receive()
            assert held.total == 0

    run(scenario())


def test_whole_frames_that_wait_for_their_turn_count(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes()
        async with connections(held=held) as all_of_them:
            pair = await all_of_them.connect()
            frames = request("do", 1) + request("x" * 300_000, 2) + request("do", 3)
            pair.connection.data_received(frames)
            assert held.total > 300_000
            assert [(await pair.receive())["id"] for _ in range(2)] == [1, 3]
            assert held.total == 0

    run(scenario())


def test_frames_that_are_begun_by_many_end_the_longest_of_them(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes(most=3000)
        async with connections(held=held) as all_of_them:
            long, short = await all_of_them.connect(), await all_of_them.connect()
            long.writer.write(request("do", 1) + b"{" * 2000)
            await long.receive()
            short.writer.write(request("do", 1) + b"{" * 1001)
            await short.receive()
            assert await long.rest() == []
            await long.gone()
            assert held.total == 1001

    run(scenario())


def test_answers_that_wait_for_others_of_their_batch_count_until_they_are_sent(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes()
        async with connections(held=held) as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(batch_of(request("do", 1), request("wait", 2), request("do", 3)))
            await all_of_them.calls.one_waits.wait()
            pair.send("do", 4)
            answer = await pair.receive()
            assert answer["id"] == 4
            assert held.total == 2 * len(json.dumps(answer, separators=(",", ":")) + "\n")
            all_of_them.calls.waiting[0].result(Done())
            assert [each["id"] for each in json.loads(await pair.reader.readline())] == [1, 3, 2]
            assert held.total == 0

    run(scenario())


def test_a_connection_that_leaves_its_batches_open_is_ended_once_and_holds_nothing_then(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes(most=300)
        async with connections(held=held) as all_of_them:
            greedy, other = await all_of_them.connect(), await all_of_them.connect()
            with capture_logs() as logs:
                greedy.writer.write(batch_of(request("wait", 0), *(request("do", number) for number in range(1, 31))))
                await greedy.gone()
            assert [entry["event"] for entry in logs] == ["connection.dropped"]
            assert held.total == 0
            assert all_of_them.calls.done < 30
            assert all_of_them.calls.cancelled == ["cancelled"]
            other.send("do", 1)
            assert (await other.receive())["id"] == 1

    run(scenario())


async def fill(pair: Pair, full: Callable[[], bool]) -> int:
    """Ask without reading the answers; return how many requests it took."""
    # What the client's end has received would be read by its own loop.
    cast(asyncio.Transport, pair.writer.transport).pause_reading()
    asked = 0
    while not full():
        pair.writer.write(request("do", 1) * 100)
        asked += 100
        await asyncio.sleep(0)
    return asked


def test_what_is_not_read_counts_until_it_is(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes()
        async with connections(held=held) as all_of_them:
            pair = await all_of_them.connect()
            asked = await fill(pair, lambda: held.total > 0)
            cast(asyncio.Transport, pair.writer.transport).resume_reading()
            for _ in range(asked):
                await pair.receive()
            assert held.total == 0

    run(scenario())


def test_what_a_closed_connection_has_not_read_counts_until_it_is_gone(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes()
        async with connections(held=held) as all_of_them:
            pair = await all_of_them.connect()
            await fill(pair, lambda: held.total > 0)
            for _ in range(2):
                pair.connection.close()
                assert held.total > 0
            pair.connection.abort()
            await pair.gone()
            assert held.total == 0

    run(scenario())


def test_answers_that_are_not_read_end_the_client_that_left_most(run: Run) -> None:
    async def scenario() -> None:
        held = HeldBytes(most=50_000)
        async with connections(held=held) as all_of_them:
            deaf, other = await all_of_them.connect(), await all_of_them.connect()
            # One connection alone may leave twelve megabytes.
            assert await fill(deaf, deaf.lost.is_set) < 50_000
            other.send("do", 2)
            assert (await other.receive())["id"] == 2
            assert held.total == 0

    run(scenario())
