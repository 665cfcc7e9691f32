"""Streams of the asyncio client: every way out of one, and its cancellation at the daemon."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from car_client import AsyncClient, AsyncStream, DaemonUnavailable, ProtocolError, RequestCancelled
from tests.client.fake_daemon import FakeDaemon
from tests.pace import HANG_S


@pytest.fixture
def endless(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon whose streams fall silent after one chunk."""
    daemon.silent_after = 1
    return daemon


async def cancelled(daemon: FakeDaemon) -> bool:
    """Wait for a cancellation; return whether it named the first stream."""
    asked = await daemon.saw("infer_stream")
    await daemon.saw("$/cancelRequest")
    return bool(daemon.params("$/cancelRequest") == {"id": asked.id})


async def test_a_stream_yields_the_chunks_and_then_has_the_answer(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        stream = client.infer_stream("Hi", seed=7)
        assert stream.answer is None
        assert [chunk.text async for chunk in stream] == ["Hel", "lo"]
        assert stream.answer is not None
        assert (stream.answer.chunks, stream.answer.seed) == (2, 7)
        assert [chunk async for chunk in stream] == []
    assert daemon.params("infer_stream") == {"prompt": "Hi", "seed": 7}


async def test_an_empty_stream_has_an_answer_too(daemon: FakeDaemon) -> None:
    daemon.pieces = []
    async with AsyncClient(daemon.path) as client, client.infer_stream("Hi") as stream:
        assert [chunk async for chunk in stream] == []
        assert stream.answer is not None


async def test_a_read_stream_is_not_cancelled(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        async with client.infer_stream("Hi") as stream:
            assert len([chunk async for chunk in stream]) == 2
        await client.tokenize("a message later")
    assert "$/cancelRequest" not in [call.method for call in daemon.calls]


async def test_break_cancels(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        async for chunk in client.infer_stream("Hi"):
            assert chunk.text == "Hel"
            break
        assert await cancelled(endless)


async def test_an_exception_in_the_loop_cancels(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        with contextlib.suppress(ZeroDivisionError):
            async for _ in client.infer_stream("Hi"):
                raise ZeroDivisionError
        assert await cancelled(endless)


async def test_aclose_cancels_and_ends_the_iteration(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        stream = client.infer_stream("Hi")
        await anext(stream)
        await stream.aclose()
        assert await cancelled(endless)
        assert [chunk async for chunk in stream] == []


async def test_leaving_the_block_cancels(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        async with client.infer_stream("Hi"):
            pass
        assert await cancelled(endless)


async def test_cancelling_the_task_cancels_at_the_daemon(endless: FakeDaemon) -> None:
    async def read(stream: AsyncStream) -> None:
        async for _ in stream:
            pass

    async with AsyncClient(endless.path) as client:
        task = asyncio.create_task(read(client.infer_stream("Hi")))
        await endless.saw("infer_stream")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await cancelled(endless)


async def test_cancel_ends_the_stream_with_its_error_after_what_was_sent(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        stream = client.infer_stream("Hi")
        assert (await anext(stream)).text == "Hel"
        stream.cancel()
        with pytest.raises(RequestCancelled) as caught:
            await anext(stream)
    assert (caught.value.data["chunks"], caught.value.started) == (1, True)


async def test_a_stream_that_is_cancelled_before_there_is_a_daemon_ends_as_soon_as_it_is_sent(path: Path) -> None:
    async with AsyncClient(path) as client:
        stream = client.infer_stream("Hi")
        step = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        stream.cancel()
        daemon = FakeDaemon(path).start()
        daemon.silent_after = 0
        try:
            with pytest.raises(RequestCancelled):
                await step
        finally:
            daemon.stop()


async def test_a_stream_that_is_left_before_there_is_a_daemon_ends_at_once_and_sends_nothing(path: Path) -> None:
    async with AsyncClient(path) as client:
        stream = client.infer_stream("Hi")
        step = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0)
        await stream.aclose()
        assert await asyncio.wait_for(step, HANG_S) is None
        daemon = FakeDaemon(path).start()
        try:
            await client.tokenize("a message later")
            assert {call.method for call in daemon.calls} == {"inference/capacity", "tokenize"}
        finally:
            daemon.stop()


async def test_a_block_around_a_stream_that_was_left_has_no_chunks(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        stream = client.infer_stream("Hi")
        await stream.aclose()
        async with stream:
            assert [chunk async for chunk in stream] == []


async def test_a_stream_never_begun_sends_nothing(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        await client.infer_stream("Hi").aclose()
        client.infer_stream("Hi")
        await client.tokenize("a message later")
    assert {call.method for call in endless.calls} == {"inference/capacity", "tokenize"}


async def test_a_gap_is_an_error_after_the_chunks_before_it_and_cancels(endless: FakeDaemon) -> None:
    endless.pieces, endless.silent_after = ["a", "b", "c"], 3
    endless.numbers[1] = 2
    async with AsyncClient(endless.path) as client:
        stream = client.infer_stream("Hi")
        assert (await anext(stream)).text == "a"
        with pytest.raises(ProtocolError):
            await anext(stream)
        assert await cancelled(endless)


async def test_a_missing_last_chunk_is_an_error(daemon: FakeDaemon) -> None:
    daemon.claimed = 3
    async with AsyncClient(daemon.path) as client:
        with pytest.raises(ProtocolError, match="3 chunks, 2 came"):
            assert [chunk async for chunk in client.infer_stream("Hi")]


async def test_a_connection_lost_in_a_stream_is_an_error(endless: FakeDaemon) -> None:
    async with AsyncClient(endless.path) as client:
        stream = client.infer_stream("Hi")
        await anext(stream)
        endless.drop()
        with pytest.raises(DaemonUnavailable):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_streams_side_by_side_keep_their_chunks_apart(daemon: FakeDaemon) -> None:
    daemon.pieces = [str(number) for number in range(100)]

    async def read(client: AsyncClient) -> list[str]:
        return [chunk.text async for chunk in client.infer_stream("Hi")]

    async with AsyncClient(daemon.path) as client:
        answers = await asyncio.gather(*(read(client) for _ in range(10)))
    assert answers == [daemon.pieces] * 10


async def test_chunks_of_a_megabyte_come_whole(daemon: FakeDaemon) -> None:
    daemon.pieces = ["a" * 1_000_000, "b" * 1_000_000]
    async with AsyncClient(daemon.path) as client:
        assert [chunk.text async for chunk in client.infer_stream("Hi")] == daemon.pieces
