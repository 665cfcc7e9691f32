"""The memory limit of all clients: beyond it the client that uses most is dropped."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from car_daemon.connections.memory_share import ClientMemoryLimit, MemoryShare
from car_protocol.limits import MAX_USERS, USER_FLOOR_BYTES
from tests.daemon.captured_log import capture_logs
from tests.daemon.conftest import Run
from tests.daemon.connections.pairs import Done, Pair, batch_of, connections, request

MIB = 1024 * 1024


class FakeBuffer:
    """A buffer of a process, of the size that the test sets."""

    def __init__(self, limit: ClientMemoryLimit, pid: int = 1, uid: int = 0) -> None:
        self.bytes = 0
        self.dropped = False
        self.share = MemoryShare(limit, lambda: (uid, pid), lambda: self.bytes, self._drop)

    def resize(self, size: int) -> None:
        """Use this many bytes from now on."""
        self.bytes = size
        self.share.changed()

    def _drop(self) -> None:
        self.dropped, self.bytes = True, 0
        self.share.changed()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=50))
def test_the_total_is_the_sum_of_all_buffers_and_within_the_limit(events: list[tuple[int, int]]) -> None:
    limit = ClientMemoryLimit(most=100)
    buffers = [FakeBuffer(limit, pid=number // 2) for number in range(5)]
    for number, size in events:
        others = sum(buffer.bytes for buffer in buffers if buffer is not buffers[number])
        for buffer in buffers:
            buffer.dropped = False
        buffers[number].resize(size)
        assert limit.total == sum(buffer.bytes for buffer in buffers) <= 100
        assert any(buffer.dropped for buffer in buffers) == (size + others > 100)


def test_the_client_that_uses_most_is_dropped_whichever_one_grew() -> None:
    limit = ClientMemoryLimit(most=100)
    small, large = FakeBuffer(limit, 1), FakeBuffer(limit, 2)
    large.resize(60)
    small.resize(40)
    assert not large.dropped
    small.resize(41)
    assert (small.dropped, large.dropped, limit.total) == (False, True, 41)
    assert repr(limit) == "<ClientMemoryLimit bytes=41 of=100 shares=1>"


def test_a_process_with_many_small_shares_goes_before_one_with_a_larger_one() -> None:
    limit = ClientMemoryLimit(most=100)
    many, honest = [FakeBuffer(limit, 1) for _ in range(9)], FakeBuffer(limit, 2)
    for buffer in many:
        buffer.resize(8)
    honest.resize(40)
    assert (sum(buffer.dropped for buffer in many), honest.dropped) == (2, False)


def test_small_shares_of_many_processes_of_one_user_go_before_a_larger_one_of_another_user() -> None:
    limit = ClientMemoryLimit(most=100)
    many, honest = [FakeBuffer(limit, pid, uid=1) for pid in range(30)], FakeBuffer(limit, 1, uid=2)
    for buffer in many:
        buffer.resize(3)
    honest.resize(20)
    assert (sum(buffer.dropped for buffer in many), honest.dropped) == (4, False)


def test_of_the_heaviest_user_the_heaviest_process_goes_first() -> None:
    limit = ClientMemoryLimit(most=100)
    heavy, light, other = FakeBuffer(limit, 1, uid=1), FakeBuffer(limit, 2, uid=1), FakeBuffer(limit, 3, uid=2)
    light.resize(21)
    heavy.resize(30)
    other.resize(50)
    assert (heavy.dropped, light.dropped, other.dropped) == (True, False, False)


@given(st.lists(st.tuples(st.integers(1, MAX_USERS + 2), st.integers(0, 6), st.integers(0, 12)), max_size=120))
def test_a_user_within_the_floor_never_loses_a_byte(events: list[tuple[int, int, int]]) -> None:
    limit = ClientMemoryLimit()
    buffers = {(uid, pid): FakeBuffer(limit, pid, uid) for uid in range(1, MAX_USERS + 3) for pid in range(7)}
    for uid, pid, mebibytes in events:
        before = Counter[int]()
        for (each, number), buffer in buffers.items():
            buffer.dropped = False
            before[each] += mebibytes * MIB if (each, number) == (uid, pid) else buffer.bytes
        buffers[uid, pid].resize(mebibytes * MIB)
        losers = {each for (each, _), buffer in buffers.items() if buffer.dropped}
        assert all(before[each] > USER_FLOOR_BYTES for each in losers)


def test_a_client_that_has_read_since_is_measured_again() -> None:
    limit = ClientMemoryLimit(most=100)
    reader, other = FakeBuffer(limit, 1), FakeBuffer(limit, 2)
    reader.resize(90)
    reader.bytes = 5
    other.resize(60)
    assert (reader.dropped, other.dropped, limit.total) == (False, False, 65)


def test_a_frame_that_was_begun_counts_until_it_ends(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit()
        async with connections(memory_limit=limit) as all_of_them:
            pair = await all_of_them.connect()
            frame = request("do", 1)
            pair.writer.write(frame + frame[:20])
            await pair.receive()
            assert limit.total == 20
            pair.writer.write(frame[20:])
            await pair.receive()
            assert limit.total == 0

    run(scenario())


def test_whole_frames_that_wait_for_their_turn_count(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit()
        async with connections(memory_limit=limit) as all_of_them:
            pair = await all_of_them.connect()
            frames = request("do", 1) + request("x" * 300_000, 2) + request("do", 3)
            pair.connection.data_received(frames)
            assert limit.total > 300_000
            assert [(await pair.receive())["id"] for _ in range(2)] == [1, 3]
            assert limit.total == 0

    run(scenario())


def test_frames_that_are_begun_by_many_end_the_longest_of_them(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit(most=3000)
        async with connections(memory_limit=limit) as all_of_them:
            long, short = await all_of_them.connect(), await all_of_them.connect()
            long.writer.write(request("do", 1) + b"{" * 2000)
            await long.receive()
            short.writer.write(request("do", 1) + b"{" * 1001)
            await short.receive()
            assert await long.rest() == []
            await long.gone()
            assert limit.total == 1001

    run(scenario())


def test_a_frame_whose_client_is_dropped_with_it_is_not_carried_out(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit(most=3000)
        async with connections(memory_limit=limit) as all_of_them:
            pair = await all_of_them.connect()
            pair.connection.data_received(request("do", 1) + b"{" * 3001)
            await pair.gone()
            assert (all_of_them.handler.done, limit.total) == (0, 0)

    run(scenario())


def test_answers_that_wait_for_others_of_their_batch_count_until_they_are_sent(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit()
        async with connections(memory_limit=limit) as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(batch_of(request("do", 1), request("wait", 2), request("do", 3)))
            await all_of_them.handler.one_waits.wait()
            pair.send("do", 4)
            answer = await pair.receive()
            assert answer["id"] == 4
            assert limit.total == 2 * len(json.dumps(answer, separators=(",", ":")) + "\n")
            all_of_them.handler.waiting[0].result(Done())
            assert [each["id"] for each in json.loads(await pair.reader.readline())] == [1, 3, 2]
            assert limit.total == 0

    run(scenario())


def test_a_connection_that_leaves_its_batches_open_is_ended_once_and_uses_no_memory_then(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit(most=300)
        async with connections(memory_limit=limit) as all_of_them:
            greedy, other = await all_of_them.connect(), await all_of_them.connect()
            with capture_logs() as logs:
                greedy.writer.write(batch_of(request("wait", 0), *(request("do", number) for number in range(1, 31))))
                await greedy.gone()
            assert [entry["event"] for entry in logs] == ["connection.dropped"]
            assert limit.total == 0
            assert all_of_them.handler.done < 30
            assert all_of_them.handler.cancelled == ["cancelled"]
            other.send("do", 1)
            assert (await other.receive())["id"] == 1

    run(scenario())


async def fill(pair: Pair, full: Callable[[], bool]) -> int:
    """Send requests without reading the answers; return how many requests it took."""
    # What the client's end has received would be read by its own loop.
    cast(asyncio.Transport, pair.writer.transport).pause_reading()
    sent = 0
    while not full():
        pair.writer.write(request("do", 1) * 100)
        sent += 100
        await asyncio.sleep(0)
    return sent


def test_unread_answers_count_until_they_are_read(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit()
        async with connections(memory_limit=limit) as all_of_them:
            pair = await all_of_them.connect()
            sent = await fill(pair, lambda: limit.total > 0)
            cast(asyncio.Transport, pair.writer.transport).resume_reading()
            for _ in range(sent):
                await pair.receive()
            assert limit.total == 0

    run(scenario())


def test_unread_answers_of_a_closed_connection_count_until_it_is_gone(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit()
        async with connections(memory_limit=limit) as all_of_them:
            pair = await all_of_them.connect()
            await fill(pair, lambda: limit.total > 0)
            for _ in range(2):
                pair.connection.close()
                assert limit.total > 0
            pair.connection.abort()
            await pair.gone()
            assert limit.total == 0

    run(scenario())


def test_answers_that_are_not_read_end_the_client_that_left_most(run: Run) -> None:
    async def scenario() -> None:
        limit = ClientMemoryLimit(most=50_000)
        async with connections(memory_limit=limit) as all_of_them:
            unread, other = await all_of_them.connect(), await all_of_them.connect()
            # One connection alone may leave twelve megabytes.
            assert await fill(unread, unread.lost.is_set) < 50_000
            other.send("do", 2)
            assert (await other.receive())["id"] == 2
            assert limit.total == 0

    run(scenario())
