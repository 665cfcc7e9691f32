"""A connection over a real socket: order, fairness, every way to end."""

import asyncio
import time
from typing import cast

import pytest

from car_daemon.periodic import Periodic
from car_protocol.errors import RpcError
from car_protocol.limits import Limits
from tests.daemon.conftest import Run
from tests.daemon.connections import Done, Json, batch_of, connections, request

SMALL = Limits(max_frame_bytes=1000, frame_timeout_ms=50)


def busy(seconds: float) -> None:
    """Keep the event loop for so long, as a call does that computes."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Written(list[bytes]):
    """A transport that keeps what is written."""

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.append(data)


def test_what_is_answered_at_once_is_written_before_the_loop_turns(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            connection, written = (await all_of_them.connect()).connection, Written()
            connection._outbox.open(cast(asyncio.Transport, written))
            connection.data_received(request("do", 1))
            assert written == [b'{"id":1,"result":{"done":true},"jsonrpc":"2.0"}\n']

    run(scenario())


def test_frames_are_carried_out_in_order_however_many_come_at_once(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("do", number) for number in range(3000)))
            assert [(await pair.receive())["id"] for _ in range(3000)] == list(range(3000))

    run(scenario())


def test_one_clients_thousands_of_frames_let_another_clients_one_frame_through(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            all_of_them.calls.before_each = lambda: busy(0.0002)
            greedy, other = await all_of_them.connect(), await all_of_them.connect()
            greedy.writer.write(b"".join(request("do", number) for number in range(2000)))
            await greedy.receive()
            other.send("do", 1)
            await other.receive()
            assert all_of_them.calls.done < 200
            for _ in range(1999):
                await greedy.receive()

    run(scenario())


def test_frames_beyond_what_may_wait_are_read_later_and_none_is_lost(run: Run) -> None:
    line = b'{"jsonrpc":"2.0","id":%d,"method":"do","params":{"x":"' + b"a" * 5000 + b'"}}\n'

    async def scenario() -> None:
        async with connections() as all_of_them:
            all_of_them.calls.before_each = lambda: busy(0.0005)
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(line % number for number in range(1000)))
            assert [(await pair.receive())["id"] for _ in range(1000)] == list(range(1000))

    run(scenario())


def test_a_half_close_finishes_what_waits_and_what_is_in_flight(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("do", number) for number in range(1, 500)) + request("wait", 0))
            pair.writer.write_eof()
            for number in range(1, 500):
                assert (await pair.receive())["id"] == number
            await all_of_them.calls.one_waits.wait()
            all_of_them.calls.waiting[0].result(Done())
            assert [message["id"] for message in await pair.rest()] == [0]
            await pair.gone()

    run(scenario())


def test_a_half_close_lets_a_batch_be_answered_whole(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            batch = batch_of(request("do", 31), request("do", 32))
            pair.connection.data_received(request("do", 30) + batch)
            pair.connection.eof_received()
            *_, last = await pair.rest()
            assert [answer["id"] for answer in cast(list[Json], last)] == [31, 32]

    run(scenario())


def test_an_id_of_a_batch_is_free_again_once_the_batch_was_answered(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(batch_of(request("do", 1), request("wait", 2), request("do", 1)))
            await all_of_them.calls.one_waits.wait()
            pair.send("do", 1)
            early = await pair.receive()
            assert (early["id"], early["error"]["data"]["id"]) == (None, 1)
            all_of_them.calls.waiting[0].result(Done())
            first, again, last = cast(list[Json], await pair.receive())
            assert (first["id"], last["id"], again["error"]["data"]["id"]) == (1, 2, 1)
            pair.send("do", 1)
            assert (await pair.receive())["result"] == {"done": True}

    run(scenario())


def test_an_id_in_flight_is_refused_in_a_batch_whatever_the_entry_is(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.send("wait", 5)
            await all_of_them.calls.one_waits.wait()
            pair.writer.write(batch_of(request("infer_stream", 5), request("infer_stream", 6), request("do", 7)))
            answers = cast(list[Json], await pair.receive())
            assert [answer["id"] for answer in answers] == [None, 6, 7]
            assert answers[0]["error"]["data"]["id"] == 5
            all_of_them.calls.waiting[0].result(Done())
            assert (await pair.receive())["id"] == 5

    run(scenario())


def test_a_full_close_after_a_half_close_cancels_what_is_in_flight(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.send("wait", 1)
            pair.writer.write_eof()
            await all_of_them.calls.one_waits.wait()
            assert not all_of_them.calls.cancelled
            pair.writer.close()
            await pair.gone()
            assert all_of_them.calls.cancelled == ["cancelled"]

    run(scenario())


def test_a_close_drops_the_frames_that_wait(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            all_of_them.calls.before_each = lambda: busy(0.001)
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("do", number) for number in range(3000)))
            await pair.receive()
            pair.writer.transport.abort()
            await pair.gone()
            assert all_of_them.calls.done < 1000

    run(scenario())


def test_a_frame_too_long_answers_what_is_in_flight_then_says_why_and_closes(run: Run) -> None:
    async def scenario() -> None:
        async with connections(SMALL) as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(request("wait", 1) + request("do", 2) + b"a" * 1002 + request("do", 3))
            first, second, third = await pair.rest()
            assert (first["id"], second["id"], second["error"]["data"]["reason"]) == (2, 1, "cancelled")
            assert (third["id"], third["error"]["data"]["limit"]) == (None, "max_frame_bytes")
            await pair.gone()

    run(scenario())


def test_a_frame_that_was_begun_and_does_not_end_closes_the_connection(run: Run) -> None:
    async def scenario() -> None:
        async with connections(SMALL) as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(request("do", 1) + b"{")
            first, second = await pair.rest()
            assert first["id"] == 1
            assert second["error"]["data"] == {
                "reason": "limit",
                "retryable": False,
                "started": False,
                "limit": "frame_timeout_ms",
                "value": 50,
            }

    run(scenario())


def test_a_connection_without_an_unfinished_frame_lives_on(run: Run) -> None:
    async def scenario() -> None:
        async with connections(SMALL) as all_of_them:
            idle, slow = await all_of_them.connect(), await all_of_them.connect()
            idle.writer.write(b"  \r\n")
            slow.writer.write(b"{")
            await slow.rest()
            idle.send("do", 1)
            assert (await idle.receive())["id"] == 1

    run(scenario())


def test_a_defect_in_one_connections_frame_ends_that_connection_alone(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            bad, good = await all_of_them.connect(), await all_of_them.connect()
            bad.writer.write(request("do", 1) + request("fail", 2) + request("do", 3))
            await bad.gone()
            good.send("do", 4)
            assert (await good.receive())["id"] == 4

    run(scenario())


def test_nothing_follows_the_last_word_of_a_connection(run: Run) -> None:
    async def scenario() -> None:
        async with connections(SMALL) as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(request("wait", 1) + b"a" * 1002)
            messages = await pair.rest()
            all_of_them.calls.waiting[0].error(RpcError("engine_lost"))
            assert [message["id"] for message in messages] == [1, None]

    run(scenario())


def test_with_64_requests_in_flight_what_is_answered_at_once_still_is(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("wait", number) for number in range(64)))
            pair.send("do", 64)
            assert await pair.receive() == {"jsonrpc": "2.0", "id": 64, "result": {"done": True}}
            pair.send("wait", 65)
            assert (await pair.receive())["error"]["data"]["limit"] == "max_in_flight"

    run(scenario())


@pytest.mark.parametrize("count", [65, 100])
def test_the_65th_request_in_flight_is_refused_and_the_others_live(run: Run, count: int) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("wait", number) for number in range(count)))
            for number in range(64, count):
                refused = await pair.receive()
                assert (refused["id"], refused["error"]["data"]["limit"]) == (number, "max_in_flight")
            for exchange in all_of_them.calls.waiting:
                exchange.result(Done())
            assert [(await pair.receive())["id"] for _ in range(64)] == list(range(64))

    run(scenario())


def test_the_status_is_told_again_and_again_until_it_is_told_otherwise_or_the_connection_ends(run: Run) -> None:
    async def status() -> None:
        async with connections() as clients:
            pair, told = await clients.connect(), asyncio.Event()
            slow = Periodic(60, lambda: None)
            pair.connection.repeat(slow)
            pair.connection.repeat(Periodic(0.001, told.set))
            assert slow._timer is not None
            assert slow._timer.cancelled()
            await told.wait()
            last = Periodic(60, lambda: None)
            pair.connection.repeat(last)
            pair.writer.close()
            await pair.gone()
            assert last._timer is not None
            assert last._timer.cancelled()

    run(status())
