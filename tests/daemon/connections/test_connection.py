"""A connection over a real socket: order, fairness, every way to end."""

import asyncio
import time
from typing import cast

import pytest

from car_protocol.errors import RpcError
from car_protocol.limits import Limits
from tests.daemon.conftest import Run
from tests.daemon.connections.pairs import Done, Json, batch_of, connections, request

SMALL = Limits(max_frame_bytes=1000, frame_timeout_ms=50)


def busy(seconds: float) -> None:
    """Keep the event loop busy, as a call that computes does."""
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


def test_an_answer_given_at_once_is_written_before_the_loop_turns(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            connection, written = (await all_of_them.connect()).connection, Written()
            connection._outbound.open(cast(asyncio.Transport, written))
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


def test_frames_of_a_client_that_does_not_read_wait_until_it_reads(run: Run) -> None:
    total = 40_000

    async def scenario() -> None:
        limits = Limits(max_frame_bytes=1000, max_output_bytes=2**16, slow_reader_ms=30_000)
        async with connections(limits) as all_of_them:
            pair = await all_of_them.connect()
            transport = cast(asyncio.Transport, pair.writer.transport)
            transport.pause_reading()
            pair.writer.write(b"".join(request("do", number) for number in range(total)))
            done = -1
            while done != all_of_them.handler.done:
                done = all_of_them.handler.done
                await asyncio.sleep(0.1)  # nothing announces that no frame is carried out any more
            # The kernel's buffers take a part of the answers, the outbound buffer its bound.
            assert 0 < done < total / 2
            transport.resume_reading()
            assert [(await pair.receive())["id"] for _ in range(total)] == list(range(total))

    run(scenario())


def test_one_clients_thousands_of_frames_let_another_clients_one_frame_through(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            all_of_them.handler.before_each = lambda: busy(0.0002)
            greedy, other = await all_of_them.connect(), await all_of_them.connect()
            greedy.writer.write(b"".join(request("do", number) for number in range(2000)))
            await greedy.receive()
            other.send("do", 1)
            await other.receive()
            assert all_of_them.handler.done < 200
            for _ in range(1999):
                await greedy.receive()

    run(scenario())


def test_long_frames_of_many_connections_let_a_short_frame_of_another_through(run: Run) -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"do","params":{"x":"' + b"a" * 10_000 + b'"}}\n'

    async def scenario() -> None:
        async with connections() as all_of_them:
            greedy, other = [await all_of_them.connect() for _ in range(20)], await all_of_them.connect()
            for each in greedy:
                each.connection.data_received(line)
            assert all_of_them.handler.done == 0
            other.connection.data_received(request("do", 2))
            assert all_of_them.handler.done == 1
            assert [(await each.receive())["id"] for each in (other, *greedy)] == [2, *[1] * 20]

    run(scenario())


def test_frames_beyond_the_bound_are_read_later_and_none_is_lost(run: Run) -> None:
    line = b'{"jsonrpc":"2.0","id":%d,"method":"do","params":{"x":"' + b"a" * 5000 + b'"}}\n'

    async def scenario() -> None:
        async with connections() as all_of_them:
            all_of_them.handler.before_each = lambda: busy(0.0005)
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(line % number for number in range(1000)))
            assert [(await pair.receive())["id"] for _ in range(1000)] == list(range(1000))

    run(scenario())


def test_a_half_close_finishes_waiting_frames_and_requests_in_flight(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("do", number) for number in range(1, 500)) + request("wait", 0))
            pair.writer.write_eof()
            for number in range(1, 500):
                assert (await pair.receive())["id"] == number
            await all_of_them.handler.one_waits.wait()
            all_of_them.handler.waiting[0].result(Done())
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
            await all_of_them.handler.one_waits.wait()
            pair.send("do", 1)
            early = await pair.receive()
            assert (early["id"], early["error"]["data"]["id"]) == (None, 1)
            all_of_them.handler.waiting[0].result(Done())
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
            await all_of_them.handler.one_waits.wait()
            pair.writer.write(batch_of(request("infer_stream", 5), request("infer_stream", 6), request("do", 7)))
            answers = cast(list[Json], await pair.receive())
            assert [answer["id"] for answer in answers] == [None, 6, 7]
            assert answers[0]["error"]["data"]["id"] == 5
            all_of_them.handler.waiting[0].result(Done())
            assert (await pair.receive())["id"] == 5

    run(scenario())


def test_a_full_close_after_a_half_close_cancels_requests_in_flight(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.send("wait", 1)
            pair.writer.write_eof()
            await all_of_them.handler.one_waits.wait()
            assert not all_of_them.handler.cancelled
            pair.writer.close()
            await pair.gone()
            assert all_of_them.handler.cancelled == ["cancelled"]

    run(scenario())


def test_a_close_drops_the_frames_that_wait(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            all_of_them.handler.before_each = lambda: busy(0.001)
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("do", number) for number in range(3000)))
            await pair.receive()
            pair.writer.transport.abort()
            await pair.gone()
            assert all_of_them.handler.done < 1000

    run(scenario())


def test_a_frame_too_long_cancels_requests_in_flight_then_gives_the_reason_and_closes(run: Run) -> None:
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


def test_no_message_follows_the_last_error_of_a_connection(run: Run) -> None:
    async def scenario() -> None:
        async with connections(SMALL) as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(request("wait", 1) + b"a" * 1002)
            messages = await pair.rest()
            all_of_them.handler.waiting[0].error(RpcError("engine_lost"))
            assert [message["id"] for message in messages] == [1, None]

    run(scenario())


def test_with_64_requests_in_flight_immediate_answers_still_work(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("infer", number) for number in range(64)))
            pair.send("do", 64)
            assert await pair.receive() == {"jsonrpc": "2.0", "id": 64, "result": {"done": True}}
            pair.send("infer", 65)
            assert (await pair.receive())["error"]["data"]["limit"] == "max_in_flight"

    run(scenario())


@pytest.mark.parametrize("count", [65, 100])
def test_the_65th_request_in_flight_is_refused_and_the_others_live(run: Run, count: int) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.writer.write(b"".join(request("infer", number) for number in range(count)))
            for number in range(64, count):
                refused = await pair.receive()
                assert (refused["id"], refused["error"]["data"]["limit"]) == (number, "max_in_flight")
            for call in all_of_them.handler.waiting:
                call.result(Done())
            assert [(await pair.receive())["id"] for _ in range(64)] == list(range(64))

    run(scenario())


def test_the_end_of_a_connection_ends_its_subscription_to_the_status(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair, ended = await all_of_them.connect(), asyncio.Event()
            pair.connection.subscriptions.end_status = ended.set
            pair.writer.close()
            await ended.wait()

    run(scenario())


@pytest.mark.parametrize("blocked", [False, True])
def test_the_status_is_sent_at_once_and_only_to_a_client_that_has_read(run: Run, *, blocked: bool) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            connection, written = (await all_of_them.connect()).connection, Written()
            connection._outbound.open(cast(asyncio.Transport, written))
            if blocked:
                connection.pause_writing()
            connection.push(b"status\n")
            assert written == ([] if blocked else [b"status\n"])

    run(scenario())


def test_a_frame_too_long_is_answered_with_the_reason_after_a_half_close_too(run: Run) -> None:
    async def scenario() -> None:
        async with connections(SMALL) as all_of_them:
            pair = await all_of_them.connect()
            pair.connection.data_received(request("do", 1) + request("wait", 2) + b"a" * 1002)
            pair.connection.eof_received()
            messages = await pair.rest()
            assert [message["id"] for message in messages] == [1, 2, None]
            assert messages[-1]["error"]["data"]["limit"] == "max_frame_bytes"
            await pair.gone()

    run(scenario())


def test_a_connection_shows_its_counters(run: Run) -> None:
    async def scenario() -> None:
        async with connections() as all_of_them:
            pair = await all_of_them.connect()
            pair.send("wait", 1)
            await all_of_them.handler.one_waits.wait()
            shown = repr(pair.connection)
            assert "in_flight=1" in shown
            assert "frames=0" in shown
            assert "unwritten=0" in shown

    run(scenario())
