"""A load on real connections: a fake daemon's socket, and a fake server of completions."""

import asyncio
import socket

import pytest

from car_client.carctl.bench.completions import LoadError
from car_client.carctl.bench.generator import connect, generate
from car_client.carctl.bench.workload import Lengths, PlannedRequest, Workload
from car_client.errors import ConnectionLost, LimitReached, Overloaded
from car_protocol.errors import RpcError
from tests.client.carctl.bench.fake_sse_server import fake_sse_server
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import ANSWER


async def test_clients_ask_until_all_requests_are_answered(daemon: FakeDaemon) -> None:
    ticks: list[None] = []
    workload = Workload(clients=3, requests=10, answers=Lengths(5, 9), options={"ignore_eos": True})
    found = await generate(str(daemon.path), workload, lambda: ticks.append(None))
    assert found.requests == len(ticks) == 10
    assert daemon.accepted == 3
    assert found.tokens_per_s > 0
    assert 0 < found.ttft_ms.p50 <= found.ttft_ms.p95 <= found.ttft_ms.p99 <= found.ttft_ms.max


async def test_arrivals_do_not_wait_for_those_before_them(daemon: FakeDaemon) -> None:
    daemon.silent.add("infer_stream")
    running = asyncio.create_task(generate(str(daemon.path), Workload(rate=500, requests=6)))
    await daemon.saw("infer_stream", 6)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_time_ends_a_load(daemon: FakeDaemon) -> None:
    found = await generate(str(daemon.path), Workload(clients=2, seconds=1.0))
    assert found.requests >= 2


async def test_without_an_answer_in_time_there_are_no_figures(daemon: FakeDaemon) -> None:
    with pytest.raises(LoadError, match="no request was answered"):
        await generate(str(daemon.path), Workload(rate=0.001, seconds=0.01))


async def test_every_connection_is_closed_in_the_end(daemon: FakeDaemon) -> None:
    await generate(str(daemon.path), Workload(clients=4, requests=8))
    await asyncio.to_thread(daemon.wait_until_gone, daemon.accepted)


async def test_a_daemon_that_goes_away_ends_the_load(daemon: FakeDaemon) -> None:
    daemon.silent_after = 1
    running = asyncio.create_task(generate(str(daemon.path), Workload(requests=1)))
    await daemon.saw("infer_stream")
    daemon.drop()
    with pytest.raises(ConnectionLost):
        await running


async def test_a_daemon_that_refuses_the_connection_ends_the_load(daemon: FakeDaemon) -> None:
    daemon.refusal = RpcError("limit", limit="max_connections", value=1)
    with pytest.raises(LimitReached):
        await generate(str(daemon.path), Workload(requests=1))


async def test_a_refused_request_is_sent_once_and_ends_the_load(daemon: FakeDaemon) -> None:
    daemon.first["infer_stream"] = [RpcError("overloaded", why="queue_full", retry_after_ms=1)]
    with pytest.raises(Overloaded):
        await generate(str(daemon.path), Workload(requests=1))
    assert len([call for call in daemon.calls if call.method == "infer_stream"]) == 1


async def test_a_request_has_its_prompt_its_length_and_the_options_of_the_load(daemon: FakeDaemon) -> None:
    workload = Workload(requests=1, prompts=Lengths(3, 3), answers=Lengths(9, 9), options={"priority": "throughput"})
    await generate(str(daemon.path), workload)
    sent = daemon.params("infer_stream")
    assert (len(sent["tokens"]), sent["max_tokens"], sent["priority"]) == (3, 9, "throughput")


async def test_chunks_are_timed_and_the_answer_has_the_tokens(daemon: FakeDaemon) -> None:
    daemon.pieces = ["a", "b", "c"]
    target, started = await connect(str(daemon.path), {}), asyncio.Event()
    answer = await target.stream(PlannedRequest("Hi", 2).params, started)
    await target.aclose()
    assert started.is_set()
    assert len(answer.piece_times) == 3
    assert (answer.tokens, answer.prompt_tokens, answer.queue_ms) == (
        ANSWER["usage"]["completion_tokens"],
        ANSWER["usage"]["prompt_tokens"],
        ANSWER["timings"]["queue_ms"],
    )


async def test_a_decision_has_the_label_and_is_timed_as_one_piece(daemon: FakeDaemon) -> None:
    daemon.answers["decide"] = {"usage": {"prompt_tokens": 9, "cached_tokens": 4, "computed_tokens": 5}}
    target = await connect(str(daemon.path), {"client": "decider", "temperature": 0})
    answer = await target.whole({"state": "mail", "questions": []})
    await target.aclose()
    assert daemon.params("decide") == {"client": "decider", "state": "mail", "questions": []}
    assert (len(answer.piece_times), answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (1, 0, 9, 4)


async def test_a_refused_connection_is_said() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with pytest.raises(LoadError, match="connection refused; is it running"):
            await generate(url, Workload(requests=1))


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_server_of_completions_is_measured_as_the_daemon_is(chunked: bool) -> None:
    with fake_sse_server() as server:
        server.chunked = chunked
        found = await generate(server.url, Workload(clients=2, requests=6, answers=Lengths(9, 9)))
        assert found.requests == 6
        assert found.prompt_tokens == 7
        assert {path for path, _ in server.asked} == {"/v1/completions"}
        assert {asked["max_tokens"] for _, asked in server.asked} == {9}


async def test_a_path_in_the_url_is_asked() -> None:
    with fake_sse_server() as server:
        server.events = [{"content": "a"}, {"content": "", "stop": True, "tokens_predicted": 1}]
        await generate(f"{server.url}/completion", Workload(requests=1))
        assert server.asked[0][0] == "/completion"


async def test_a_server_that_refuses_ends_the_load() -> None:
    with fake_sse_server() as server:
        server.status = 503
        with pytest.raises(LoadError, match="503"):
            await generate(server.url, Workload(clients=2, requests=4))
