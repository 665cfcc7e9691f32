"""A load on real connections: a fake daemon's socket, and a fake server of completions."""

import asyncio
import socket
from pathlib import Path

import pytest

from car_client.carctl.load.card_codec import CardCodec
from car_client.carctl.load.codec import LoadError
from car_client.carctl.load.connection import Connection
from car_client.carctl.load.endpoint import Endpoint
from car_client.carctl.load.generator import generate
from car_client.carctl.load.lengths import Lengths
from car_client.carctl.load.request import Request
from car_client.carctl.load.workload import Workload
from car_protocol.envelope import Failure, encode_message
from car_protocol.errors import RpcError
from tests.client.carctl.load.fake_sse_server import fake_sse_server
from tests.client.fake_daemon import PATIENCE_S, FakeDaemon


async def test_clients_ask_until_all_requests_are_answered(daemon: FakeDaemon) -> None:
    ticks: list[None] = []
    workload = Workload(clients=3, requests=10, answers=Lengths(5, 9), options={"ignore_eos": True})
    found = await generate(Endpoint(str(daemon.path)), workload, lambda: ticks.append(None))
    assert found.requests == len(ticks) == 10
    assert daemon.accepted == 3
    assert found.tokens_per_s > 0
    assert 0 < found.ttft_ms.p50 <= found.ttft_ms.p95 <= found.ttft_ms.p99 <= found.ttft_ms.max


async def test_arrivals_do_not_wait_for_those_before_them(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer_stream")
    running = asyncio.create_task(generate(Endpoint(str(daemon.path)), Workload(rate=500, requests=6)))
    await daemon.saw("infer_stream", 6)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_time_ends_a_load(daemon: FakeDaemon) -> None:
    found = await generate(Endpoint(str(daemon.path)), Workload(clients=2, seconds=0.05))
    assert found.requests >= 2


async def test_without_an_answer_in_time_there_are_no_figures(daemon: FakeDaemon) -> None:
    with pytest.raises(LoadError, match="no request was answered"):
        await generate(Endpoint(str(daemon.path)), Workload(rate=0.001, seconds=0.01))


async def test_every_connection_is_closed_in_the_end(daemon: FakeDaemon) -> None:
    await generate(Endpoint(str(daemon.path)), Workload(clients=4, requests=8))
    await asyncio.to_thread(daemon.wait_until_gone, daemon.accepted)


async def test_a_daemon_that_goes_away_ends_the_load(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    running = asyncio.create_task(generate(Endpoint(str(daemon.path)), Workload(requests=1)))
    await daemon.saw("infer_stream")
    daemon.drop()
    with pytest.raises(LoadError, match="closed before the answer ended"):
        await running


async def test_a_daemon_that_restarts_between_two_requests_is_asked_on_a_new_connection(daemon: FakeDaemon) -> None:
    async with asyncio.timeout(PATIENCE_S):
        found = await generate(Endpoint(str(daemon.path)), Workload(rate=10, requests=2), daemon.drop)
    assert (found.requests, daemon.accepted) == (2, 2)


async def test_a_refusal_that_came_before_the_question_is_told_to_who_asks() -> None:
    connection = Connection(CardCodec({}))
    connection.connection_made(asyncio.WriteTransport())
    refusal = RpcError("limit", limit="max_connections", value=1)
    connection.data_received(encode_message(Failure(None, refusal.as_object())))
    connection.connection_lost(None)
    assert not connection.reusable
    with pytest.raises(LoadError, match="the daemon answered with an error"):
        await connection.stream(Request(1, "Hi", 1))


async def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot connect to .*nobody: no such file or directory"):
        await generate(Endpoint(str(tmp_path / "nobody")), Workload(requests=1))


async def test_a_refused_connection_is_said() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with pytest.raises(LoadError, match="connection refused; is it running"):
            await generate(Endpoint(url), Workload(requests=1))


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_server_of_completions_is_measured_as_the_daemon_is(chunked: bool) -> None:
    with fake_sse_server() as server:
        server.chunked = chunked
        found = await generate(Endpoint(server.url), Workload(clients=2, requests=6, answers=Lengths(9, 9)))
        assert found.requests == 6
        assert found.prompt_tokens == 7
        assert {path for path, _ in server.asked} == {"/v1/completions"}
        assert {asked["max_tokens"] for _, asked in server.asked} == {9}


async def test_a_path_in_the_url_is_asked() -> None:
    with fake_sse_server() as server:
        server.events = [{"content": "a"}, {"content": "", "stop": True, "tokens_predicted": 1}]
        await generate(Endpoint(f"{server.url}/completion"), Workload(requests=1))
        assert server.asked[0][0] == "/completion"


async def test_a_server_that_refuses_ends_the_load() -> None:
    with fake_sse_server() as server:
        server.status = 503
        with pytest.raises(LoadError, match="503"):
            await generate(Endpoint(server.url), Workload(clients=2, requests=4))
