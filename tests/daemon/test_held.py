"""What is held for all clients together: who has most goes, and only for too much."""

import asyncio
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from car_daemon.held import HeldBytes, Share
from tests.daemon.conftest import Run
from tests.daemon.connections import Pair, connections, request


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=50))
def test_all_together_are_what_each_holds_and_never_too_much(events: list[tuple[int, int]]) -> None:
    held = HeldBytes(most=100)
    gone: list[int] = []
    shares = [Share(held, lambda number=number: gone.append(number)) for number in range(5)]  # type: ignore[misc]
    for number, size in events:
        others = [share.size for share in shares if share is not shares[number]]
        gone.clear()
        shares[number].hold(size)
        assert held.total == sum(share.size for share in shares) <= 100
        assert bool(gone) == (size + sum(others) > 100)
        assert all(shares[each].size == 0 for each in gone)


def test_who_holds_most_goes_whoever_asks_for_more() -> None:
    held = HeldBytes(most=100)
    gone: list[str] = []
    small, large = Share(held, lambda: gone.append("small")), Share(held, lambda: gone.append("large"))
    large.hold(60)
    small.hold(40)
    assert gone == []
    small.hold(41)
    assert (gone, held.total) == (["large"], 41)


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
