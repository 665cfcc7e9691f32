"""The promises of a continuous-batching server, each a test by its name."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from car_client import AsyncClient
from tests.e2e.support import KNOWN, LONG, Daemon, Json, RawClient, conversation, endless, greedy


def test_a_stop_signal_ends_generation_early(client: RawClient) -> None:
    request = client.send("infer_stream", endless())
    client.first_chunk(request)
    client.notify("$/cancelRequest", {"id": request})
    error = client.response(request)["error"]
    assert error["code"] == -32800
    assert error["data"]["started"]
    assert 1 <= error["data"]["chunks"] < 4000


async def test_a_dropped_stop_handle_frees_the_sequence(small_daemon: Daemon) -> None:
    async with AsyncClient(small_daemon.path) as client:
        for _ in range(4):
            async for _chunk in client.infer_stream("Hi", ignore_eos=True, max_tokens=4000):
                break
        answer = await client.infer("Hi", max_tokens=1)
    assert answer.usage.completion_tokens == 1
    small_daemon.wait_until_idle()


def cancelled(client: RawClient) -> int:
    """Return how many requests were cancelled so far: each ended before it was done."""
    return int(client.result("daemon/status")["totals"]["cancelled"])


def test_a_client_that_disconnects_frees_its_sequences_for_the_next(small_daemon: Daemon) -> None:
    with small_daemon.connect() as leaver:
        before = cancelled(leaver)
        for request in [leaver.send("infer_stream", endless()) for _ in range(2)]:
            leaver.first_chunk(request)
    with small_daemon.connect() as client:
        client.result("infer", {"prompt": "Hi", "max_tokens": 1})
        assert cancelled(client) > before, "the others ended by themselves"
    small_daemon.wait_until_idle()


def test_a_reset_connection_frees_its_sequences_too(small_daemon: Daemon) -> None:
    leaver = small_daemon.connect()
    before = cancelled(leaver)
    for request in [leaver.send("infer_stream", endless()) for _ in range(2)]:
        leaver.first_chunk(request)
    leaver.socket.shutdown(socket.SHUT_WR)
    leaver.close()
    with small_daemon.connect() as client:
        client.result("infer", {"prompt": "Hi", "max_tokens": 1})
        assert cancelled(client) > before, "the others ended by themselves"
    small_daemon.wait_until_idle()


def test_a_half_closed_client_gets_its_answers_and_is_released(daemon: Daemon) -> None:
    with daemon.connect() as client:
        requests = [client.send("infer", greedy(known)) for known in KNOWN[:3]]
        client.socket.shutdown(socket.SHUT_WR)
        answers = [client.receive() for _ in requests]
        assert {answer["id"]: answer["result"]["text"] for answer in answers} == {
            request: known.answer for request, known in zip(requests, KNOWN[:3], strict=True)
        }
        with pytest.raises(EOFError):
            client.receive()


def test_exhaustion_answers_clearly(small: RawClient) -> None:
    for request in [small.send("infer_stream", endless()) for _ in range(2)]:
        small.first_chunk(request)
    error = small.call("infer", {"prompt": "Hi", "wait": False})["error"]
    assert (error["code"], error["data"]["reason"]) == (1001, "overloaded")
    assert error["data"]["why"] == "no free sequence"
    assert error["data"]["retryable"]


@pytest.mark.slow
def test_long_and_short_prompts_together_both_finish(daemon: Daemon) -> None:
    def served(tokens: int) -> int:
        with daemon.connect() as client:
            params = {"tokens": [300] * tokens, "max_tokens": 20, "ignore_eos": True}
            return int(client.result("infer", params)["usage"]["completion_tokens"])

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(served, [3500, 5, 2000, 1])) == [20] * 4


def test_cancelling_one_leaves_its_sibling_running(client: RawClient) -> None:
    doomed = client.send("infer_stream", endless())
    client.first_chunk(doomed)
    sibling = client.send("infer", greedy(LONG[0]))
    client.notify("$/cancelRequest", {"id": doomed})
    assert client.response(sibling)["result"]["text"] == LONG[0].answer


def test_a_burst_of_cancels_serves_the_rest(small: RawClient) -> None:
    requests = [small.send("infer", greedy(known)) for known in KNOWN[:20]]
    for request in requests[::2]:
        small.notify("$/cancelRequest", {"id": request})
    answers: dict[int, Json] = {}
    while len(answers) < len(requests):
        message = small.receive()
        assert message["id"] not in answers, "a request was answered twice"
        answers[message["id"]] = message
    for request, known in list(zip(requests, KNOWN[:20], strict=True))[1::2]:
        assert answers[request]["result"]["text"] == known.answer


def test_a_duplicate_id_never_replaces_the_first_request(client: RawClient) -> None:
    client.send("infer", greedy(LONG[0]), request_id="same")
    client.send("infer", greedy(KNOWN[0]), request_id="same")
    refused = client.receive()
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)
    assert refused["error"]["data"]["id"] == "same"
    assert client.response("same")["result"]["text"] == LONG[0].answer
    client.send("infer", greedy(KNOWN[0]), request_id="same")
    assert client.response("same")["result"]["text"] == KNOWN[0].answer


def test_cancelling_twice_or_nothing_is_no_error(client: RawClient) -> None:
    assert client.result("$/cancelRequest", {"id": "never seen"}) == {}
    request = client.send("infer_stream", endless())
    client.first_chunk(request)
    client.notify("$/cancelRequest", {"id": request})
    client.notify("$/cancelRequest", {"id": request})
    assert client.response(request)["error"]["code"] == -32800
    assert client.result("infer", greedy(KNOWN[0]))["text"] == KNOWN[0].answer


def test_a_cancelled_waiter_is_answered_at_once_and_never_runs(small: RawClient) -> None:
    running = [small.send("infer_stream", endless()) for _ in range(2)]
    for request in running:
        small.first_chunk(request)
    waiter = small.send("infer_stream", {"messages": conversation("Hi")})
    assert small.result("inference/capacity")["queued"] == 1
    small.notify("$/cancelRequest", {"id": waiter})
    error = small.response(waiter)["error"]
    assert error["data"]["reason"] == "cancelled"
    assert error["data"]["chunks"] == 0
    assert not error["data"]["started"]


def test_totals_add_up_at_every_reading(small: RawClient) -> None:
    for known in KNOWN[:6]:
        small.send("infer", greedy(known))
    doomed = small.send("infer_stream", endless())
    small.send("infer", {"prompt": "Hi", "model": "no such model"})
    for _ in range(5):
        totals = small.result("daemon/status")["totals"]
        assert totals["received"] == sum(totals.values()) - totals["received"]
    small.notify("$/cancelRequest", {"id": doomed})


def test_requests_that_the_connection_itself_refuses_count_as_rejected(daemon: Daemon) -> None:
    daemon.wait_until_idle()
    with daemon.connect() as client:
        before = client.result("daemon/status")["totals"]
        first = client.send("infer", endless(), request_id="same")
        client.send("infer", greedy(KNOWN[0]), request_id="same")
        assert client.receive()["error"]["code"] == -32600
        entry = {"jsonrpc": "2.0", "id": 1, "method": "infer_stream", "params": greedy(KNOWN[0])}
        client.send_bytes(json.dumps([entry]).encode() + b"\n")
        client.receive_batch()
        client.notify("$/cancelRequest", {"id": first})
        client.response(first)
        after = client.result("daemon/status")["totals"]
    assert after["rejected"] - before["rejected"] == 2
    assert after["received"] - before["received"] == 3
