"""Bytes that no honest client sends: each is answered as the contract says, and nobody else feels it."""

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from car_protocol.limits import MAX_FRAME_BYTES
from tests.e2e.support import ROOT, Daemon, Json, RawClient, configured, endless, running
from tests.pace import cpu_time

VECTORS = ROOT.parent / "shared" / "vectors" / "json"
ABSENT = pytest.mark.skip(reason="no parsing cases beside the repository")
PING = b'{"jsonrpc":"2.0","id":"ping","method":"models/list"}\n'
MIB = 1024 * 1024
Start = Callable[..., Daemon]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon whose log is about these tests alone."""
    with tempfile.TemporaryDirectory(prefix="card-") as name, running(Path(name), "--capacity", "8") as daemon:
        yield daemon


def vectors(prefix: str) -> list[object]:
    """Return the files of one kind, or a skipped case where there are none."""
    files = sorted(VECTORS.glob(f"{prefix}_*.json"))
    return [pytest.param(file, id=file.stem) for file in files] or [pytest.param(VECTORS, marks=ABSENT)]


def ping(client: RawClient) -> list[Json]:
    """Return what came before the answer to one more request, which has to come; batches as their answers."""
    client.send_bytes(PING)
    before: list[Json] = []
    while True:
        message: Json | list[Json] = client.receive()
        if isinstance(message, list):
            before += message
        elif message.get("id") == "ping":
            return before
        else:
            before.append(message)


def frame_of(size: int) -> bytes:
    """Return a request of exactly so many bytes, without its newline."""
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"models/list","params":{"_meta":{"x":"', b'"}}}'
    return head + b"a" * (size - len(head) - len(tail)) + tail


def closing_line(client: RawClient) -> Json:
    """Return the last message before the daemon closed."""
    last: Json = {}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            last = client.receive()
    return last


# No JSON, and JSON that is no request.


@pytest.mark.parametrize("file", vectors("n"))
def test_what_is_no_json_is_a_parse_error_and_the_connection_goes_on(client: RawClient, file: Path) -> None:
    lines = [line for line in file.read_bytes().split(b"\n") if line.strip(b" \t\r")]
    client.send_bytes(file.read_bytes() + b"\n")
    answers = ping(client)
    assert len(answers) == len(lines)
    if len(lines) == 1:
        assert [(answer["id"], answer["error"]["code"]) for answer in answers] == [(None, -32700)]
    else:
        assert all(answer["error"]["code"] in (-32700, -32600) for answer in answers)


@pytest.mark.parametrize("file", [*vectors("y"), *vectors("i")])
def test_json_that_is_no_request_never_closes_the_connection(client: RawClient, file: Path) -> None:
    client.send_bytes(file.read_bytes() + b"\n")
    assert all(answer["id"] is None and answer["error"]["code"] in (-32700, -32600) for answer in ping(client))


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"jsonrpc":"2.0","id":1,"method":"infer","params":['])
def test_nesting_of_a_hundred_thousand_is_refused_for_200_ms_of_work(
    daemon: Daemon, client: RawClient, opening: bytes
) -> None:
    process = psutil.Process(daemon.process.pid)
    before = process.cpu_times()
    with cpu_time() as beside:
        for _ in range(3):
            client.send_bytes(opening * 100_000 + b"\n")
            answer = client.receive()
            assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    after = process.cpu_times()
    assert (after.user + after.system - before.user - before.system) * beside.scale < 3 * 0.2
    assert ping(client) == []


# Large frames.


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES - 1, MAX_FRAME_BYTES])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_frame_up_to_the_limit_is_answered(client: RawClient, size: int, end: bytes) -> None:
    client.send_bytes(frame_of(size) + end)
    assert "result" in client.receive()
    assert ping(client) == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_frame_of_one_byte_more_gets_the_limit_and_the_connection_is_closed(daemon: Daemon, end: bytes) -> None:
    with daemon.connect() as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.send_bytes(frame_of(MAX_FRAME_BYTES + 1) + end + b"a")
        last = closing_line(client)
    assert last["id"] is None
    assert last["error"]["code"] == 1008
    assert last["error"]["data"]["limit"] == "max_frame_bytes"
    assert last["error"]["data"]["value"] == MAX_FRAME_BYTES


def test_frames_that_many_clients_begin_take_no_more_memory_than_a_bound(daemon: Daemon) -> None:
    before = psutil.Process(daemon.process.pid).memory_info().rss
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect()) for _ in range(50)]
        for client in clients:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.send_bytes(frame_of(MAX_FRAME_BYTES - 1))
        grown = psutil.Process(daemon.process.pid).memory_info().rss - before
        assert 100 * MIB < grown < 320 * MIB
        with daemon.connect() as other:
            assert ping(other) == []
    assert "connection.dropped" in daemon.log.read_text()


def test_what_is_in_flight_is_answered_before_a_connection_is_closed_for_its_frames(daemon: Daemon) -> None:
    with daemon.connect() as client:
        stream = client.send("infer_stream", endless())
        client.first_chunk(stream)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.send_bytes(b"a" * (MAX_FRAME_BYTES + 2))
        messages = []
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                messages.append(client.receive())
    answer, last = (message for message in messages if "error" in message)
    assert (answer["id"], answer["error"]["data"]["reason"]) == (stream, "cancelled")
    assert (last["error"]["data"]["limit"], messages[-1]) == ("max_frame_bytes", last)
    daemon.wait_until_idle()


@pytest.mark.slow
@pytest.mark.parametrize("mebibytes", [64, 1024])
def test_bytes_without_end_cost_no_more_memory_than_one_frame(start: Start, mebibytes: int) -> None:
    daemon = start("--capacity", "2").ready()
    with daemon.connect() as client:
        # The event loop's own buffer for reading is there for good once anything large was read.
        client.send_bytes(frame_of(MIB) + b"\n")
        client.receive()
    process = psutil.Process(daemon.process.pid)
    before = most = process.memory_info().rss
    with daemon.connect() as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(mebibytes * 4):
            client.send_bytes(b"a" * (MIB // 4))
            most = max(most, process.memory_info().rss)
    # Beside the frame the daemon's timers allocate a little: 100 KiB in the course of a gigabyte on busy cores.
    assert most - before <= MAX_FRAME_BYTES + 256 * 1024, most - before
    with daemon.connect() as client:
        assert ping(client) == []


# Any chunking.


def test_requests_byte_by_byte_are_answered(client: RawClient) -> None:
    for byte in PING * 2:
        client.send_bytes(bytes([byte]))
    assert [client.receive()["id"] for _ in range(2)] == ["ping", "ping"]


def test_two_requests_cut_anywhere_are_answered(client: RawClient) -> None:
    two = b'{"jsonrpc":"2.0","id":1,"method":"tokenize","params":{"text":"\xc3\xa9"}}\r\n' + PING
    for offset in range(len(two) + 1):
        client.send_bytes(two[:offset])
        client.send_bytes(two[offset:])
        assert {client.receive()["id"] for _ in range(2)} == {1, "ping"}


def test_requests_are_answered_in_order_when_nothing_is_read_meanwhile(client: RawClient) -> None:
    count = 4000
    requests = [b'{"jsonrpc":"2.0","id":%d,"method":"models/list"}\n' % number for number in range(count)]
    client.send_bytes(b"".join(requests))
    assert [client.receive()["id"] for _ in range(count)] == list(range(count))


def test_a_half_close_has_everything_answered_that_came_before_it(daemon: Daemon) -> None:
    with daemon.connect() as client:
        client.send_bytes(
            PING * 2000 + b'{"jsonrpc":"2.0","id":1,"method":"infer","params":{"prompt":"Hi"}}\n' + PING[:-1]
        )
        client.socket.shutdown(socket.SHUT_WR)
        answers = 0
        with contextlib.suppress(EOFError):
            while True:
                client.receive()
                answers += 1
    assert answers == 2001


def test_a_close_with_requests_unanswered_frees_what_ran(daemon: Daemon) -> None:
    client = daemon.connect()
    client.first_chunk(client.send("infer_stream", endless()))
    with daemon.connect() as other:
        before = other.result("daemon/status")["totals"]["cancelled"]
        client.send_bytes(PING * 500)
        client.close()
        daemon.wait_until_idle()
        assert other.result("daemon/status")["totals"]["cancelled"] == before + 1, "it ended by itself"


# Many of everything.


@pytest.mark.slow
def test_600_connections_of_one_user_are_served_and_the_next_is_refused_with_a_reason(start: Start) -> None:
    daemon = start("--capacity", "2")
    daemon.connect().close()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect()) for _ in range(600)]
        for client in clients:
            client.send_bytes(PING)
        assert all("result" in client.receive() for client in clients)
        refused = stack.enter_context(daemon.connect())
        error = refused.receive()["error"]
        assert (error["code"], error["data"]["limit"], error["data"]["value"]) == (1008, "max_connections_per_uid", 600)
        with pytest.raises(EOFError):
            refused.receive()
        clients[0].close()
        clients[1].send_bytes(PING)
        clients[1].receive()
        assert ping(stack.enter_context(daemon.connect())) == []


def test_600_requests_at_once_on_one_connection_each_have_their_answer(small: RawClient) -> None:
    requests = [small.send("infer", {"prompt": "Hi", "max_tokens": 2}) for _ in range(600)]
    answers = [small.response(request) for request in requests]
    refused = [answer["error"]["data"]["limit"] for answer in answers if "error" in answer]
    assert set(refused) <= {"max_in_flight"}
    assert len(answers) - len(refused) >= 64


def test_pipelined_calls_of_one_client_do_not_delay_other_clients(daemon: Daemon) -> None:
    flood = b'{"jsonrpc":"2.0","id":1,"method":"daemon/status"}\n' * 4000
    with daemon.connect() as greedy, daemon.connect() as other:
        ping(other)
        greedy.send_bytes(flood)
        started = time.monotonic()
        worst, done = 0.0, 0
        while done < 20:
            asked = time.monotonic()
            ping(other)
            worst = max(worst, time.monotonic() - asked)
            done += 1
        for _ in range(4000):
            greedy.receive()
        took = time.monotonic() - started
        assert worst < max(0.1, took / 4), (worst, took)


@pytest.mark.slow
def test_what_many_look_ups_may_take_is_bounded_for_all_of_them(start: Start, tmp_path: Path) -> None:
    # A small bound, so that its bytes are read before the suspended engine counts as hung, on a busy machine too.
    daemon = start(*configured(tmp_path, f"[queue]\nmax_bytes = {MIB}\n"), "--capacity", "2")
    engine = daemon.ready().engine()
    request = b'{"jsonrpc":"2.0","id":%d,"method":"tokenize","params":{"text":"' + b"ab " * (MIB // 36) + b'"}}\n'
    with daemon.connect() as client:
        engine.suspend()
        for number in range(14):
            client.send_bytes(request % number)
        refused = client.response(13)
        engine.resume()
        assert refused["error"]["data"] == {
            "reason": "limit",
            "retryable": False,
            "started": False,
            "limit": "queue_max_bytes",
            "value": MIB,
        }


def test_the_log_says_nothing_of_what_was_sent(daemon: Daemon, client: RawClient) -> None:
    assert ping(client) == []
    events = daemon.log.read_text()
    assert "Traceback" not in events
    assert "failed" not in events
