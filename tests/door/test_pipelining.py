"""Requests that wait on a connection for the answers before them, and clients that leave or do not read meanwhile."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn

from car_http.crowds import Strangers
from car_http.protocol import MAX_HEAD_BYTES, MAX_HEADERS, MOST_WAITING, DoorProtocol, DoorState
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import DoorProcess, Json, door_before
from tests.e2e.support import CANARY, Daemon, conversation
from tests.pace import HANG_S, calls

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
OFFER = b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class Client:
    """A client's end of a connection, as the protocol's transport."""

    def __init__(self) -> None:
        self.received = b""
        self.unread = 0  # bytes in the buffer because the client does not read
        self.reading = True  # the protocol reads what the client sends
        self.ended = ""  # how the protocol ended the connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As a transport of a loopback port."""
        return default

    def write(self, data: bytes) -> None:
        """As a transport."""
        self.received += data

    def get_write_buffer_size(self) -> int:
        """As a transport."""
        return self.unread

    def pause_reading(self) -> None:
        """As a transport."""
        self.reading = False

    def resume_reading(self) -> None:
        """As a transport."""
        self.reading = True

    def is_closing(self) -> bool:
        """As a transport."""
        return bool(self.ended)

    def close(self) -> None:
        """As a transport."""
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        """As a transport."""
        self.ended = "aborted"

    @property
    def answers(self) -> int:
        """The number of answers that came."""
        return self.received.count(b"HTTP/1.1 ")


class App:
    """An application whose answers wait until `go_on`; each of its requests is an event when its client left."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun: list[Json] = []  # the scopes of the requests
        self.left: list[str] = []  # the paths of the requests whose client left
        self.pieces = 0  # of an answer, before it waits

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Answer one request."""
        self.begun.append(scope)
        leaving = asyncio.create_task(self._until_left(scope, receive))
        if self.pieces:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})
        await self.go_on.wait()
        leaving.cancel()
        if not self.pieces:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_left(self, scope: Any, receive: Callable[[], Any]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.append(scope["path"])


class Bench:
    """A connection of a client to the application, and the strangers that it is one of."""

    def __init__(self) -> None:
        self.app = App()
        self.strangers = Strangers(1)
        self.config = uvicorn.Config(self.app, lifespan="off", log_config=None)
        self.config.load()
        self.client = Client()
        self.door = self.connect(self.client)

    def connect(self, client: Client) -> DoorProtocol:
        """Return the door's end of a further connection."""
        door = DoorProtocol(self.config, DoorState(self.strangers), {}, asyncio.get_running_loop())
        door.connection_made(client)
        return door

    async def send(self, data: bytes) -> None:
        """Have the client send bytes, and the application do what it can."""
        self.door.data_received(data)
        await self.settle()

    async def answer(self) -> None:
        """Have the application answer all requests."""
        self.app.go_on.set()
        await self.settle()

    async def settle(self) -> None:
        """Let all tasks run until each of them waits."""
        for _ in range(8 * (MOST_WAITING + 2)):  # a request takes fewer turns
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A connection, which ends after the test."""
    bench = Bench()
    yield bench
    bench.door.connection_lost(None)
    await bench.answer()


def refusal(client: Client) -> str:
    """Return the message of the last answer, which is an error."""
    body = client.received.rpartition(b"\r\n\r\n")[2]
    return str(json.loads(body)["error"]["message"])


@pytest.mark.parametrize("request_bytes", [GET, OFFER], ids=["plain", "offering another protocol"])
async def test_eight_requests_wait_for_the_answers_before_them(bench: Bench, request_bytes: bytes) -> None:
    await bench.send(request_bytes * (1 + MOST_WAITING))
    assert (len(bench.app.begun), bench.client.ended) == (1, "")
    await bench.answer()
    assert (bench.client.answers, bench.client.ended) == (1 + MOST_WAITING, "")
    await bench.send(request_bytes * (1 + MOST_WAITING))
    assert bench.client.answers == 2 * (1 + MOST_WAITING)


async def test_a_piece_of_a_body_that_waits_costs_the_same_behind_many_headers() -> None:
    async def cost(headers: int) -> int:
        bench = Bench()
        head = b"POST /x HTTP/1.1\r\n" + b"a:b\r\n" * headers + b"Transfer-Encoding: chunked\r\n\r\n"
        await bench.send(GET + head)
        counted = calls(lambda: bench.door.data_received(b"1\r\nx\r\n" * 1000))
        bench.door.connection_lost(None)
        await bench.answer()
        return counted

    assert await cost(MAX_HEADERS - 10) == await cost(1)


@pytest.mark.parametrize("request_bytes", [GET, OFFER], ids=["plain", "offering another protocol"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_ninth_request_that_would_wait_ends_the_connection(
    bench: Bench, request_bytes: bytes, *, at_once: bool
) -> None:
    for part in [request_bytes * 3000] if at_once else [request_bytes] * (2 + MOST_WAITING):
        assert bench.client.reading
        await bench.send(part)
    assert bench.client.received.startswith(b"HTTP/1.1 400 ")
    assert "at most 8 requests" in refusal(bench.client)
    assert (bench.client.ended, len(bench.app.begun)) == ("closed", 1)
    # What stands behind it is not even parsed.
    assert len(bench.door.pipeline) == MOST_WAITING + 1


@pytest.mark.parametrize(
    "waiting",
    [
        b"GET /x HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n",
        b"GET /" + b"x" * (MAX_HEAD_BYTES // 2) + b" HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\n" + b"a:b\r\n" * (MAX_HEADERS // 2 + 1) + b"\r\n",
        b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_HEAD_BYTES // 2) + b"x" * (MAX_HEAD_BYTES // 2),
    ],
    ids=["a header", "a target", "many headers", "a body"],
)
async def test_all_requests_that_wait_have_together_the_bounds_of_one_head(bench: Bench, waiting: bytes) -> None:
    await bench.send(waiting)
    await bench.send(waiting)
    assert bench.client.ended == ""
    await bench.send(waiting)
    assert bench.client.received.startswith(b"HTTP/1.1 400 ")
    assert bench.client.ended == "closed"


async def test_a_client_that_closes_its_side_has_left_also_while_its_answer_waits_to_be_read(bench: Bench) -> None:
    bench.app.pieces = 1
    await bench.send(GET)
    bench.client.unread = 10**6
    bench.door.pause_writing()
    bench.door.eof_received()
    await bench.settle()
    assert bench.app.left == ["/x"]


async def test_a_request_that_waited_and_is_answered_counts_no_more(bench: Bench) -> None:
    for _ in range(3 * MOST_WAITING):
        await bench.send(GET * 2)
        await bench.answer()
    assert (bench.client.answers, bench.client.ended) == (6 * MOST_WAITING, "")


async def test_a_long_body_of_the_request_that_is_answered_is_read(bench: Bench) -> None:
    await bench.send(b"POST /x HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(10):
        await bench.send(b"x" * 100_000)
        assert bench.client.reading
    await bench.send(GET)
    await bench.answer()
    assert (bench.client.answers, bench.client.ended) == (2, "")


async def test_reading_goes_on_while_requests_wait_and_the_answered_one_learns_that_its_client_left(
    bench: Bench,
) -> None:
    await bench.send(GET.replace(b"/x", b"/first"))
    await bench.send(GET * 2)
    assert bench.client.reading
    bench.door.connection_lost(None)
    await bench.settle()
    assert bench.app.left == ["/first"]
    await bench.answer()
    assert len(bench.app.begun) == 1
    assert bench.client.received == b""


async def test_a_refusal_does_not_stand_in_the_middle_of_an_answer(bench: Bench) -> None:
    bench.app.pieces = 1
    await bench.send(GET)
    before = bench.client.received
    assert before.endswith(b"piece\r\n")
    await bench.send(b"NONSENSE\r\n\r\n")
    assert (bench.client.received, bench.client.ended) == (before, "closed")


@pytest.mark.parametrize(
    ("line", "closes"),
    [
        (b"Connection: upgrade, close", True),
        (b"Connection: close , Upgrade", True),
        (b"Connection: Upgrade, HTTP2-Settings", False),
    ],
)
async def test_a_declined_offer_leaves_the_rest_of_its_connection_header(
    bench: Bench, line: bytes, *, closes: bool
) -> None:
    await bench.send(b"GET /x HTTP/1.1\r\n" + line + b"\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n" + GET)
    await bench.answer()
    assert (b"connection: close" in bench.client.received) == closes
    assert (bench.client.answers, bench.client.ended) == ((1, "closed") if closes else (2, ""))
    names = {name for name, _ in bench.app.begun[0]["headers"]}
    assert not names & {b"upgrade", b"http2-settings"}


async def test_line_breaks_alone_do_not_end_the_time_after_which_an_idle_connection_ends(bench: Bench) -> None:
    await bench.send(GET)
    await bench.answer()
    timer = bench.door.timeout_keep_alive_task
    assert timer is not None
    for part in (b"\r\n", b"\n", b"\r\n\r\n"):
        await bench.send(part)
    assert bench.door.timeout_keep_alive_task is timer
    assert not timer.cancelled()
    await bench.send(GET[:3])
    assert timer.cancelled()


async def test_no_timer_of_idle_connections_runs_while_a_request_is_answered_or_after_the_end(bench: Bench) -> None:
    await bench.send(GET + GET[:9])  # the second head is not whole when the first answer ends
    await bench.answer()
    assert bench.client.answers == 1
    bench.app.go_on.clear()
    await bench.send(GET[9:])
    assert bench.door.timeout_keep_alive_task is None
    await bench.answer()
    timer = bench.door.timeout_keep_alive_task
    assert timer is not None
    bench.door.connection_lost(ConnectionResetError())
    assert timer.cancelled()


async def test_a_client_without_a_key_that_does_not_read_loses_its_connection(bench: Bench) -> None:
    await bench.send(GET)
    bench.door.pause_writing()
    assert bench.client.ended == "aborted"


async def test_a_client_with_a_key_may_read_late(bench: Bench) -> None:
    await bench.send(GET)
    bench.app.begun[0]["state"]["admitted"]()
    bench.door.pause_writing()
    assert bench.client.ended == ""


async def test_a_connection_that_gives_way_does_so_also_if_its_client_does_not_read(bench: Bench) -> None:
    bench.client.unread = 1
    others = [Client(), Client()]
    doors = [bench.connect(client) for client in others]
    assert [client.ended for client in (bench.client, *others)] == ["aborted", "closed", ""]
    for door in doors:
        door.connection_lost(None)


CHUNKED = b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


@pytest.mark.parametrize("pieces", [1, 2])
async def test_headers_behind_a_body_are_no_headers_of_the_request(bench: Bench, pieces: int) -> None:
    trailers = [b"Authorization: Bearer key\r\n", b"Host: there\r\n\r\n"]
    request = [CHUNKED + b"".join(trailers)] if pieces == 1 else [CHUNKED, b"".join(trailers)]
    for piece in [*request, GET]:
        await bench.send(piece)
    await bench.answer()
    names = [dict(scope["headers"]) for scope in bench.app.begun]
    assert names == [{b"host": b"here", b"transfer-encoding": b"chunked"}, {b"host": b"localhost"}]


async def test_headers_behind_a_body_count_as_headers_do(bench: Bench) -> None:
    await bench.send(CHUNKED + b"a: b\r\n" * MAX_HEADERS)
    assert bench.client.received.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /x HTTP/1.1\r\nX: ",
        b"GET /x HTTP/1.1\r\nX",
        b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["a value", "a name", "a trailer"],
)
async def test_a_header_without_end_is_refused_before_it_ends(bench: Bench, begin: bytes) -> None:
    await bench.send(begin)
    for _ in range(9):
        await bench.send(b"x" * (MAX_HEAD_BYTES // 8))
    assert bench.client.received.startswith(b"HTTP/1.1 431 ")
    assert bench.client.ended == "closed"


def post(door: DoorProcess, **more: Any) -> bytes:
    """Return a chat with the key."""
    body = json.dumps({"model": "guide", "messages": conversation(CANARY), **more}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {door.key}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_cancelled_when_its_client_leaves_with_a_second_request_behind_it(
    fake: FakeDaemon, folder: Path, *, stream: bool
) -> None:
    fake.silent.add("infer")
    fake.silent_after = 1
    with door_before(folder, fake.path) as door:
        with socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S) as client:
            client.sendall(post(door, stream=stream))
            fake.wait_for("infer_stream" if stream else "infer")
            client.sendall(GET)
            if stream:
                assert client.recv(15) == b"HTTP/1.1 200 OK"
        fake.wait_until_gone(fake.accepted)
        assert "defect" not in door.stop()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_requests_whose_clients_left_with_a_second_request_are_cancelled(
    served: Daemon, door: DoorProcess, *, stream: bool
) -> None:
    with served.connect() as watcher, contextlib.ExitStack() as stack:
        served.wait_until_idle()
        before = watcher.result("daemon/status")["totals"]["cancelled"]
        for _ in range(4):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S))
            client.sendall(post(door, stream=stream, max_tokens=3000, ignore_eos=True) + GET)
        while watcher.result("inference/capacity")["in_use"] < 4:
            watcher.result("infer", {"prompt": "Hi", "max_tokens": 1})
        stack.pop_all().close()
        served.wait_until_idle()
        assert watcher.result("daemon/status")["totals"]["cancelled"] == before + 4


@pytest.mark.slow
@pytest.mark.parametrize("request_bytes", [GET, OFFER], ids=["plain", "offering another protocol"])
def test_requests_without_end_take_no_memory_and_leave_no_trace(
    fake: FakeDaemon, folder: Path, request_bytes: bytes
) -> None:
    with door_before(folder, fake.path) as door, contextlib.ExitStack() as stack:
        process = psutil.Process(door.process.pid)
        before = process.memory_info().rss
        address = ("127.0.0.1", door.port)
        clients = [stack.enter_context(socket.create_connection(address, timeout=HANG_S)) for _ in range(20)]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(request_bytes * 20_000)
        for client in clients:  # which did not read until now
            with contextlib.suppress(ConnectionError):
                while client.recv(65536):
                    pass
        # A read brings at most 256 KiB to a connection; Python gives little of it back.
        assert process.memory_info().rss - before < 20 * 2**18
        assert door.stop().count("\n") == 1


@pytest.mark.parametrize(
    ("target", "headers", "path"),
    [
        ("/v1/chat/completions", "", ["error", "code"]),
        ("/v1/messages?beta=true", "", ["type"]),
        ("/v1/models", "anthropic-version: 2023-06-01\r\n", ["type"]),
        ("/api/chat", "", ["error"]),
        ("/v1/systemone", "", ["detail", 0, "msg"]),
    ],
)
async def test_a_request_that_is_no_http_is_refused_in_its_dialects_shape(
    bench: Bench, target: str, headers: str, path: list[str | int]
) -> None:
    await bench.send(f"POST {target} HTTP/1.1\r\nHost: here\r\n{headers}Content-Length: x\r\n\r\n".encode())
    assert bench.client.received.startswith(b"HTTP/1.1 400 ")
    found = json.loads(bench.client.received.partition(b"\r\n\r\n")[2])
    for name in path:
        found = found[name]
    assert isinstance(found, str)
    assert found
