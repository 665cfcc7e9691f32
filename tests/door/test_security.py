"""Requests that must not get through: without a key, from pages, malformed, oversized, slow, or ambiguous."""

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from car_http.command import run
from car_http.crowds import BodyMemory, Strangers
from car_http.exchange import Exchange
from car_http.guard import RequestHead, Rules
from car_http.problems import Problem
from car_http.protocol import DoorProtocol, DoorState
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import DoorProcess, OfflineDoor, door_before
from tests.e2e.support import CANARY, conversation
from tests.pace import HANG_S

BODY = json.dumps({"model": "guide", "messages": conversation(CANARY)}).encode()
CHATS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"]


class RawConnection:
    """A connection to the door's port without an HTTP library."""

    def __init__(self, door: DoorProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S)

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *ignored: object) -> None:
        self.socket.close()

    def answer(self, request: bytes) -> tuple[int, bytes]:
        """Send bytes and return the status and the rest of everything up to the end of the connection."""
        self.socket.sendall(request)
        received = b""
        while data := self._read():
            received += data
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", received)
        return (int(status[1]) if status else 0), received

    def _read(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""


def head(door: DoorProcess, *lines: str, path: str = "/v1/chat/completions", method: str = "POST") -> bytes:
    """Return the head of a request that would be admitted, with further lines."""
    usual = [f"Host: 127.0.0.1:{door.port}", f"Authorization: Bearer {door.key}", "Content-Type: application/json"]
    given = {line.partition(":")[0].lower() for line in lines}
    kept = [line for line in usual if line.partition(":")[0].lower() not in given]
    whole = [f"{method} {path} HTTP/1.1", *kept, *lines, "Connection: close"]
    return "\r\n".join(whole).encode("latin-1") + b"\r\n\r\n"


def sized(door: DoorProcess, *lines: str, path: str = "/v1/chat/completions") -> bytes:
    """Return a whole request with a body and further lines."""
    return head(door, f"Content-Length: {len(BODY)}", *lines, path=path) + BODY


def status(door: DoorProcess, request: bytes) -> int:
    """Return the status of the answer to bytes."""
    with RawConnection(door) as connection:
        return connection.answer(request)[0]


def test_an_admitted_request_is_answered(scripted_door: DoorProcess) -> None:
    assert status(scripted_door, sized(scripted_door)) == 200
    for name in ("x-api-key", "api-key"):
        given = sized(scripted_door, f"{name}: {scripted_door.key}").replace(b"Authorization: Bearer", b"X-Other:")
        assert status(scripted_door, given) == 200


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Authorization: Bearer wrong", 401),
        ("Authorization: Basic YTpi", 401),
        ("Authorization: Bearer", 401),
        ("Host: evil.example", 403),
        ("Host: evil.example:80", 403),
        ("Host: 127.0.0.1.evil.example", 403),
        ("Host: localhost@evil.example", 403),
        ("Host: 192.168.1.7", 403),
        ("Host: ", 403),
        ("Origin: https://evil.example", 403),
        ("Origin: null", 403),
        ("Origin: http://localhost:3000", 403),
        ("Content-Type: text/plain", 415),
        ("Content-Type: application/x-www-form-urlencoded", 415),
        ("Content-Type: multipart/form-data; boundary=x", 415),
        ("Content-Type: text/plain; application/json", 415),
        ("Content-Encoding: gzip", 415),
    ],
)
@pytest.mark.parametrize("path", CHATS)
def test_a_request_from_elsewhere_is_refused_and_has_an_id(
    scripted_door: DoorProcess, line: str, expected: int, path: str
) -> None:
    with RawConnection(scripted_door) as connection:
        code, received = connection.answer(sized(scripted_door, line, path=path))
    assert code == expected
    assert b"access-control" not in received.lower()
    assert b"\r\nx-request-id: " in received.lower()
    error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
    assert isinstance(error, str) == path.startswith("/api")


def test_chunks_of_a_coded_body_are_refused(scripted_door: DoorProcess) -> None:
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert status(scripted_door, head(scripted_door, "Transfer-Encoding: chunked") + chunks) == 200
    assert status(scripted_door, head(scripted_door, "Transfer-Encoding: gzip, chunked") + chunks) == 415


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "[::1]:8080", "127.0.0.1", "127.9.9.9:1", "localhost."]
)
def test_names_of_this_machine_are_accepted(scripted_door: DoorProcess, host: str) -> None:
    assert status(scripted_door, sized(scripted_door, f"Host: {host}")) == 200


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding : chunked"],
        ["Content-Length: +5"],
        ["Content-Length: 5,5"],
        ["Content-Length: -1"],
        ["Host: localhost", "Host: evil.example"],
        ["Host: evil.example", "Host: localhost"],
        ["X: a\nHost: evil.example"],
        ["Bad Header: x"],
    ],
)
def test_an_ambiguous_head_never_reaches_an_endpoint(
    scripted_door: DoorProcess, scripted: FakeDaemon, lines: list[str]
) -> None:
    calls = len(scripted.calls)
    smuggled = b"0\r\n\r\n" + sized(scripted_door)
    with RawConnection(scripted_door) as connection:
        code, received = connection.answer(head(scripted_door, *lines) + smuggled)
    assert code in (400, 403)
    assert received.count(b"HTTP/1.1") == 1
    assert len(scripted.calls) == calls


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"NONSENSE\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_end_the_connection(scripted_door: DoorProcess, request_head: bytes) -> None:
    assert status(scripted_door, request_head) == 400


def test_the_host_of_a_whole_url_counts_before_the_header(scripted_door: DoorProcess) -> None:
    path = "/v1/chat/completions"
    assert status(scripted_door, sized(scripted_door, path=f"http://localhost{path}")) == 200
    for place in ("http://evil.example", "http://localhost@evil.example", "HTTP://evil.example:80"):
        assert status(scripted_door, sized(scripted_door, path=place + path)) == 403


OFFER = ("Upgrade: h2c", "HTTP2-Settings: AAEAAEAA", "Connection: Upgrade, HTTP2-Settings")


def test_an_offer_of_another_protocol_is_declined_and_its_body_read(
    scripted_door: DoorProcess, scripted: FakeDaemon
) -> None:
    request = sized(scripted_door, *OFFER).replace(b"Connection: close\r\n", b"")
    kept = request[: -len(BODY)], request[-len(BODY) :]
    with RawConnection(scripted_door) as connection:
        for part in (*kept, request):  # its body by itself, then both at once
            connection.socket.sendall(part)
        code, received = connection.answer(sized(scripted_door))
    assert code == 200
    assert received.count(b"HTTP/1.1 200") == 3
    assert scripted.params("infer")["messages"] == conversation(CANARY)
    websocket = head(scripted_door, "Upgrade: websocket", "Connection: Upgrade", path="/v1/models", method="GET")
    assert status(scripted_door, websocket) == 200
    assert status(scripted_door, head(scripted_door, path="localhost:80", method="CONNECT")) == 400


def test_a_body_behind_an_offer_is_not_another_request(scripted_door: DoorProcess, scripted: FakeDaemon) -> None:
    smuggled = sized(scripted_door).replace(b"Connection: close\r\n", b"")
    offering = head(scripted_door, *OFFER, f"Content-Length: {len(smuggled)}").replace(b"Connection: close\r\n", b"")
    calls = len(scripted.calls)
    with RawConnection(scripted_door) as connection:
        connection.socket.sendall(offering)
        connection.socket.sendall(smuggled)
        code, received = connection.answer(head(scripted_door, path="/openapi.json", method="GET"))
    assert (code, received.count(b"HTTP/1.1")) == (400, 2)
    assert len(scripted.calls) == calls


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "Content-Type"])
def test_a_header_that_decides_comes_once(scripted_door: DoorProcess, name: str, path: str) -> None:
    value = {"Content-Type": "application/json", "Authorization": f"Bearer {scripted_door.key}"}.get(name, "k")
    with RawConnection(scripted_door) as connection:
        code, received = connection.answer(sized(scripted_door, f"{name}: {value}", f"{name}: {value}", path=path))
    assert code == 400
    assert f"`{name.lower()}` came twice".encode() in received


@pytest.mark.parametrize("path", CHATS)
def test_a_stream_to_http_1_0_is_a_plain_body_that_ends_with_the_connection(
    scripted_door: DoorProcess, path: str
) -> None:
    def answer(version: str) -> tuple[bytes, bytes]:
        body = json.dumps({**json.loads(BODY), "input": "Hi", "max_tokens": 9, "stream": True}).encode()
        request = head(scripted_door, f"Content-Length: {len(body)}", path=path) + body
        with RawConnection(scripted_door) as connection:
            code, received = connection.answer(request.replace(b" HTTP/1.1", b" HTTP/" + version.encode(), 1))
        assert code == 200
        shown, _, rest = received.partition(b"\r\n\r\n")
        return shown.lower(), rest

    (chunked_head, chunked), (plain_head, plain) = answer("1.1"), answer("1.0")
    assert b"transfer-encoding: chunked" in chunked_head
    assert b"transfer-encoding" not in plain_head
    assert b"connection: close" in plain_head
    assert len(plain) > 100
    assert b"\r" not in plain
    assert chunked.endswith(b"\r\n0\r\n\r\n")
    lines = (plain if path.startswith("/api") else plain.replace(b"data: [DONE]", b"")).splitlines()
    data = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith((b"{", b"data: "))]
    assert len(data) >= 2


def test_an_oversized_body_is_refused_before_it_is_sent(scripted_door: DoorProcess) -> None:
    assert status(scripted_door, head(scripted_door, "Content-Length: 8388609")) == 413
    assert status(scripted_door, head(scripted_door, "Content-Length: " + "9" * 15)) == 413


def test_the_answer_to_an_oversized_body_reaches_a_client_that_sends_it_whole(scripted_door: DoorProcess) -> None:
    size = 16 * 2**20
    for _ in range(3):
        assert status(scripted_door, head(scripted_door, f"Content-Length: {size}") + b" " * size) == 413


def test_an_oversized_chunked_body_is_refused_while_it_is_sent(scripted_door: DoorProcess) -> None:
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    request = head(scripted_door, "Transfer-Encoding: chunked") + piece * 8 + b"1\r\n \r\n"
    assert status(scripted_door, request) == 413


def test_an_oversized_head_is_refused(scripted_door: DoorProcess) -> None:
    assert status(scripted_door, head(scripted_door, *["X-Many: 1"] * 300)) == 431
    assert status(scripted_door, head(scripted_door, "X-Long: " + "x" * 70_000)) == 431
    assert status(scripted_door, head(scripted_door, path="/" + "x" * 70_000)) == 431


async def test_a_slow_body_is_refused_in_time() -> None:
    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def slow() -> Any:
        await asyncio.sleep(0.001)  # a client's own pace
        return {"type": "http.request", "body": b" ", "more_body": True}

    exchange = Exchange(RequestHead("POST", "/", {}, unix=True), slow, send, BodyMemory(), body_timeout_s=0.02)
    with pytest.raises(Problem) as caught:
        await exchange.body()
    assert (caught.value.status, caught.value.headers["connection"]) == (408, "close")


class Impatient(DoorProtocol):
    """A connection whose head has to come at once."""

    head_timeout_s = 0.05


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_a_slow_head_is_refused_in_time(folder: Path, sent: bytes) -> None:
    config = uvicorn.Config(lambda: None, lifespan="off", log_config=None)
    config.load()
    state = DoorState(Strangers(1))
    loop = asyncio.get_running_loop()
    path = str(folder / "http.sock")
    async with await loop.create_unix_server(lambda: Impatient(config, state, {}), path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert "0.05 s" in json.loads(body)["error"]["message"]


async def test_bodies_that_together_take_too_much_are_refused_until_others_end() -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 60, "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    bodies = BodyMemory(100)
    one, two = [Exchange(RequestHead("POST", "/", {}, unix=True), receive, send, bodies) for _ in range(2)]
    assert len(await one.body()) == 60
    with pytest.raises(Problem) as caught:
        await two.body()
    assert (caught.value.status, caught.value.code) == (503, "too_many_bytes")
    assert "120 bytes, the limit is 100" in caught.value.message
    two.close()
    one.close()
    assert len(await two.body()) == 60


def test_the_oldest_connection_without_a_key_gives_way_and_admitted_ones_stay() -> None:
    strangers, refused = Strangers(2), list[str]()
    for name in "abcd":
        strangers.add(name, partial(refused.append, name))
        if name == "a":
            strangers.discard(name)
    assert refused == ["b"]
    strangers.discard("b")
    strangers.add("e", partial(refused.append, "e"))
    assert refused == ["b", "c"]


def listed(connection: HTTPConnection, door: DoorProcess) -> int:
    """Return the status of a request with the key by a connection that stays open."""
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {door.key}"})
    with connection.getresponse() as response:
        response.read()
        return response.status


def test_silent_connections_to_the_port_keep_no_client_with_a_key_out(scripted: FakeDaemon, folder: Path) -> None:
    few = ("sh", "-c", 'ulimit -n 128; exec "$0" "$@"')
    with door_before(folder, scripted.path, under=few) as door, contextlib.ExitStack() as stack:
        early = HTTPConnection("127.0.0.1", door.port, timeout=HANG_S)
        stack.callback(early.close)
        assert listed(early, door) == 200
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S))
        late = HTTPConnection("127.0.0.1", door.port, timeout=HANG_S)
        stack.callback(late.close)
        assert listed(late, door) == 200
        assert listed(early, door) == 200


def test_an_encoded_path_reaches_no_other_endpoint(scripted_door: DoorProcess) -> None:
    without_key = sized(scripted_door, "Authorization: none", path="/health/../v1/chat/completions")
    assert status(scripted_door, without_key) == 401
    assert status(scripted_door, sized(scripted_door, "Authorization: none", path="/%68ealth/x")) == 401


def test_without_a_key_only_the_health_is_shown(scripted_door: DoorProcess) -> None:
    for path in ("/v1/models", "/metrics", "/card/capacity", "/props", "/api/tags", "/", "/nowhere"):
        assert status(scripted_door, head(scripted_door, "Authorization: none", path=path, method="GET")) == 401
    assert status(scripted_door, head(scripted_door, "Authorization: none", path="/health", method="GET")) == 200


async def test_pages_of_an_allowed_origin_are_served(fake: FakeDaemon, folder: Path) -> None:
    origin = "app://obsidian.md"
    async with OfflineDoor(fake.path, folder / "keys", Rules(origins=frozenset({origin}))) as door:
        asked = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        preflight = await door.request("OPTIONS", CHATS[0], b"", asked | {"host": "localhost"}, unix=False)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "access-control-allow-credentials" not in preflight.headers
        answer = await door.request("POST", CHATS[0], BODY, {"origin": origin, "content-type": "application/json"})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert answer.headers["vary"] == "Origin"
        other = await door.request("OPTIONS", CHATS[0], b"", asked | {"origin": "app://other"})
        assert other.status == 403
        assert not [name for name in other.headers if name.startswith("access-control")]


async def test_a_listed_host_is_accepted(fake: FakeDaemon, folder: Path) -> None:
    rules = Rules(hosts=frozenset({"laptop.local"}), no_key=True)
    async with OfflineDoor(fake.path, folder / "keys", rules) as door:
        for host, expected in (("laptop.local:8080", 200), ("laptop.local.evil.example", 403)):
            answer = await door.request("GET", "/v1/models", b"", {"host": host}, unix=False)
            assert answer.status == expected


async def test_keys_that_cannot_be_read_admit_nobody(fake: FakeDaemon, folder: Path) -> None:
    keys = folder / "keys"
    keys.write_text("default " + "x" * 40)
    keys.chmod(0o644)
    async with OfflineDoor(fake.path, keys) as door:
        headers = {"host": "localhost", "authorization": "Bearer " + "x" * 40}
        answer = await door.request("GET", "/v1/models", b"", headers, unix=False)
    assert (answer.status, answer.json["error"]["code"]) == (503, "keys_unusable")
    assert str(keys).encode() not in answer.body


@pytest.fixture
def own_door(fake: FakeDaemon, folder: Path) -> Iterator[DoorProcess]:
    """A door of this test alone."""
    with door_before(folder, fake.path) as door:
        yield door


def test_neither_keys_nor_prompts_are_logged(own_door: DoorProcess, fake: FakeDaemon) -> None:
    key = own_door.key
    fake.raw_answer = b"nonsense\n"
    for path in CHATS:
        status(own_door, sized(own_door, path=path + f"?key={key}"))
    status(own_door, b"POST /" + CANARY.encode() + b" NONSENSE\r\n\r\n")
    status(own_door, sized(own_door, "Authorization: Bearer wrong"))
    log = own_door.stop()
    assert key not in log
    assert CANARY not in log


async def test_a_defect_is_logged_by_its_place_alone(
    offline: OfflineDoor, fake: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    fake.pieces = [{"text": CANARY, "index": 3}]  # the request has no such answer
    answer = await offline.post("/v1/completions", {"model": "guide", "prompt": CANARY, "stream": True})
    assert (answer.status, answer.json["error"]["code"]) == (500, "internal_error")
    assert "IndexError at" in caplog.text
    assert CANARY not in caplog.text


def test_the_socket_is_this_users_alone(own_door: DoorProcess) -> None:
    assert own_door.socket.stat().st_mode & 0o777 == 0o600
    assert own_door.socket.stat().st_uid == os.getuid()


def test_serving_without_a_key_is_said_aloud(fake: FakeDaemon, folder: Path) -> None:
    with door_before(folder, fake.path, "--no-key") as door:
        request = f"GET /v1/models HTTP/1.1\r\nHost: localhost:{door.port}\r\nConnection: close\r\n\r\n"
        assert status(door, request.encode()) == 200
        assert "every program and user of this machine" in door.stop()


def test_a_second_door_on_the_same_socket_says_so(
    scripted_door: DoorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--listen", f"unix:{scripted_door.socket}"]) == 78
    assert "another program answers" in capsys.readouterr().err
