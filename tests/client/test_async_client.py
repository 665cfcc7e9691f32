"""The asyncio client's requests: results, errors, cancelling, losses."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from car_client import (
    AsyncClient,
    BadSocketPath,
    DaemonUnavailable,
    InvalidParams,
    LimitReached,
    ProtocolError,
    RequestError,
)
from car_client.transport.async_connection import AsyncConnection
from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER
from tests.pace import HANG_S


async def test_infer_returns_the_answer(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        answer = await client.infer("Hi", max_tokens=5, stop=["\n"])
    assert (answer.text, answer.finish_reason, answer.usage.completion_tokens) == ("Hello", "stop", 2)
    assert daemon.params("infer") == {"prompt": "Hi", "max_tokens": 5, "stop": ["\n"]}


async def test_infer_takes_a_conversation_or_tokens(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        await client.infer(messages=[{"role": "user", "content": "Hi"}])
        assert daemon.params("infer") == {"messages": [{"role": "user", "content": "Hi"}]}
        turns = [{"role": "user", "content": "a list that a type checker sees as plain dicts"}]
        await client.infer(messages=turns)
        assert daemon.params("infer") == {"messages": turns}
        await client.infer(tokens=range(3))
        assert daemon.params("infer") == {"tokens": [0, 1, 2]}


async def test_a_trace_goes_where_the_protocol_has_it(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        await client.infer("Hi", traceparent="00-a-b-01", _meta={"mine": 1})
        assert daemon.params("infer") == {"prompt": "Hi", "_meta": {"mine": 1, "traceparent": "00-a-b-01"}}
        await client.embed(["a"], traceparent="t")
        assert daemon.params("embed")["_meta"] == {"traceparent": "t"}
        await client.rerank("q", ["a"], traceparent="t")
        assert daemon.params("rerank")["_meta"] == {"traceparent": "t"}
        await client.embed(["a"])
        assert "_meta" not in daemon.params("embed")


async def test_the_other_methods_return_typed_results(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        assert await client.tokenize("abc", add_special=True) == [1, 2, 3]
        assert await client.count_tokens(messages=[{"role": "user", "content": "Hi"}]) == 3
        assert await client.detokenize([1, 2, 3]) == "abc"
        assert (await client.embed(["a", "b"], model="m")).embeddings == [[0.6, 0.8], [1.0, 0.0]]
        assert (await client.rerank("q", ["a", "b"])).results[0].score == 0.9
        decided = await client.decide("x", [{"type": "predicate", "instructions": "?"}], orders=2, traceparent="t")
        assert decided["team"].choice == "billing"
        assert await client.metrics() == "card_up 1\n"
        await client.cancel_request(3, 9)
        assert [model.name for model in await client.models()] == ["guide"]
        assert (await client.status()).pid == 4242
        assert await client.call("tokenize", {"text": "abc"}) == {"tokens": [1, 2, 3], "count": 3}


async def test_it_works_without_a_context_manager(daemon: FakeDaemon) -> None:
    client = AsyncClient(daemon.path)
    assert await client.tokenize("abc") == [1, 2, 3]
    await client.aclose()
    await client.aclose()


async def test_many_requests_share_one_connection(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        await asyncio.gather(*(client.infer(f"question {number}") for number in range(50)))
    assert daemon.accepted == 1


async def test_an_error_raises_the_class_of_its_reason(daemon: FakeDaemon) -> None:
    daemon.answers["infer"] = RpcError("invalid_params", param="top_k")
    async with AsyncClient(daemon.path) as client:
        with pytest.raises(InvalidParams) as caught:
            await client.infer("Hi", top_k=-1)
        with pytest.raises(RequestError, match="the method does not exist"):
            await client.call("nothing")
    assert caught.value.param == "top_k"


async def test_an_answer_of_a_megabyte_comes_whole(daemon: FakeDaemon) -> None:
    text = "é\n" * 500_000
    daemon.answers["infer"] = ANSWER | {"text": text}
    async with AsyncClient(daemon.path) as client:
        assert (await client.infer(text)).text == text
    assert daemon.params("infer")["prompt"] == text


async def test_cancelling_the_task_cancels_at_the_daemon(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    async with AsyncClient(daemon.path) as client:
        task = asyncio.create_task(client.infer("Hi"))
        asked = await daemon.saw("infer")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await daemon.saw("$/cancelRequest")
        assert daemon.params("$/cancelRequest") == {"id": asked.id}
        assert await client.tokenize("still usable") == [1, 2, 3]


async def test_a_timeout_cancels_at_the_daemon(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    async with AsyncClient(daemon.path) as client:
        await client.connect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.infer("Hi")
        await daemon.saw("$/cancelRequest")


async def test_a_task_cancelled_before_there_is_a_daemon_sends_nothing(path: Path) -> None:
    async with AsyncClient(path) as client:
        task = asyncio.create_task(client.infer("Hi"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_without_retries_a_request_fails_when_the_connection_is_lost_and_is_not_sent_again(
    daemon: FakeDaemon,
) -> None:
    daemon.silent.add("infer")
    async with AsyncClient(daemon.path, max_retries=0) as client:
        task = asyncio.create_task(client.infer("Hi"))
        await daemon.saw("infer")
        daemon.drop()
        with pytest.raises(DaemonUnavailable, match="lost"):
            await task
        assert await client.tokenize("on the next connection") == [1, 2, 3]
    assert [call.method for call in daemon.calls].count("infer") == 1


async def test_closing_the_client_fails_what_is_in_flight(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer")
    client = AsyncClient(daemon.path)
    task = asyncio.create_task(client.infer("Hi"))
    await daemon.saw("infer")
    await client.aclose()
    with pytest.raises(DaemonUnavailable):
        await task
    with pytest.raises(DaemonUnavailable, match="closed"):
        await client.infer("Hi")
    await asyncio.to_thread(daemon.wait_until_gone)


async def test_a_refused_connection_says_why(daemon: FakeDaemon) -> None:
    daemon.refusal = RpcError("limit", limit="max_connections", value=1024)
    daemon.silent.add("infer")
    async with AsyncClient(daemon.path) as client:
        with pytest.raises(LimitReached):
            await client.infer("Hi")


async def test_a_client_whose_loop_turns_late_is_told_why_too(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.refusal = RpcError("limit", limit="max_connections", value=1024)
    made = AsyncConnection.connection_made

    def made_late(connection: AsyncConnection, transport: asyncio.BaseTransport) -> None:
        assert daemon.refused.wait(HANG_S)
        made(connection, transport)

    monkeypatch.setattr(AsyncConnection, "connection_made", made_late)
    async with AsyncClient(daemon.path, connect_timeout=0.1) as client:
        with pytest.raises(LimitReached):
            await client.infer("Hi")


async def test_a_daemon_that_breaks_the_contract_is_left(daemon: FakeDaemon) -> None:
    daemon.raw_answer = b"nonsense\n"
    async with AsyncClient(daemon.path) as client:
        with pytest.raises(ProtocolError):
            await client.infer("Hi")
        await asyncio.to_thread(daemon.wait_until_gone)
        daemon.raw_answer = None
        assert (await client.infer("Hi")).text == "Hello"


async def test_a_call_that_waits_for_a_daemon_fails_at_once_when_the_client_is_closed(path: Path) -> None:
    client = AsyncClient(path, connect_timeout=60)
    waiting = asyncio.create_task(client.tokenize("a"))
    await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(DaemonUnavailable, match="closed"):
        await asyncio.wait_for(waiting, HANG_S)


async def test_no_daemon_is_an_error_that_names_the_paths_tried(path: Path) -> None:
    async with AsyncClient(path, connect_timeout=0.02) as client:
        with pytest.raises(DaemonUnavailable, match="no such file") as caught:
            await client.infer("Hi")
    assert caught.value.tried == (path,)


async def test_a_path_that_no_platform_takes_is_refused_at_once(path: Path) -> None:
    with pytest.raises(BadSocketPath, match="longer than"):
        AsyncClient(path / ("a" * 200))


async def test_an_unclosed_client_ends_with_its_loop(daemon: FakeDaemon) -> None:
    async def forget() -> None:
        await AsyncClient(daemon.path).tokenize("abc")

    thread = threading.Thread(target=lambda: asyncio.run(forget()))
    thread.start()
    await asyncio.to_thread(thread.join)
    await asyncio.to_thread(daemon.wait_until_gone)


async def test_a_question_that_is_no_text_leaves_the_connection_usable(daemon: FakeDaemon) -> None:
    async with AsyncClient(daemon.path) as client:
        with pytest.raises(UnicodeEncodeError):
            await client.infer("\ud800")
        assert (await client.infer("Hi")).text == "Hello"


async def test_leaving_the_block_with_an_exception_closes_the_connection(daemon: FakeDaemon) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with AsyncClient(daemon.path) as client:
            await client.connect()
            raise ZeroDivisionError
    await asyncio.to_thread(daemon.wait_until_gone)
