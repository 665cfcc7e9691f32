"""Many clients, clients that stop reading, and ends without a word, with a real daemon."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.door.support import DoorProcess, door_before
from tests.e2e.support import CANARY, Daemon, configured, conversation
from tests.e2e.test_metrics import samples
from tests.pace import HANG_S

openai = pytest.importorskip("openai")
CROWD = 200
ENDLESS: dict[str, Any] = {
    "model": "guide",
    "messages": conversation(CANARY),
    "stream": True,
    "max_tokens": 3000,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture
def small(folder: Path) -> Iterator[Daemon]:
    """A daemon of four sequences and eight places in the queue, which refuses further requests."""
    flags = configured(folder, '[queue]\nlimit = 8\noverflow = "drop_newest"\n')
    daemon = Daemon(folder, *flags, "--capacity", "4").ready()
    yield daemon
    if daemon.process.poll() is None:
        daemon.stop()


@pytest.fixture
def before(small: Daemon, folder: Path) -> Iterator[DoorProcess]:
    """A door in front of it."""
    door = DoorProcess(folder, small.path)
    yield door
    if door.process.returncode is None:
        door.stop()


async def outcome(client: Any, number: int) -> str:
    """Return how one request of the crowd ended."""
    try:
        answer = await client.chat.completions.create(
            model="guide", messages=conversation(f"Hello {number}"), max_tokens=4
        )
    except openai.RateLimitError as error:
        pause_ms = int(error.response.headers["retry-after-ms"])
        return "refused" if 0 < pause_ms <= 600_000 else f"refused for {pause_ms} ms"
    assert answer.choices[0].finish_reason
    return "answered"


async def crowd(door: DoorProcess, retries: int) -> list[str]:
    """Return the outcomes of many requests at once."""
    access = {"base_url": f"{door.url}/v1", "api_key": door.key}
    async with openai.AsyncOpenAI(**access, max_retries=retries, timeout=HANG_S) as client:
        return list(await asyncio.gather(*(outcome(client, number) for number in range(CROWD))))


@pytest.mark.slow
async def test_a_crowd_is_answered_or_told_when_to_come_back(before: DoorProcess) -> None:
    outcomes = await crowd(before, 0)
    assert set(outcomes) <= {"answered", "refused"}
    assert outcomes.count("answered") >= 4 + 8
    assert await crowd(before, 100) == ["answered"] * CROWD


def stalled(door: DoorProcess) -> socket.socket:
    """Return the connection of a client that sends a stream's request and reads its first bytes only."""
    client = socket.create_connection(("127.0.0.1", door.port), timeout=HANG_S)
    body = b'{"prompt":"x","stream":true,"ignore_eos":true,"logprobs":20,"max_tokens":3000}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {door.key}\r\n"
    client.sendall(head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert client.recv(64).startswith(b"HTTP/1.1 200")
    return client


@pytest.mark.slow
def test_a_client_that_stops_reading_parks_its_stream_alone(small: Daemon, before: DoorProcess) -> None:
    with (
        stalled(before),
        openai.OpenAI(base_url=f"{before.url}/v1", api_key=before.key, max_retries=0) as client,
        small.connect() as watcher,
    ):
        deadline = time.monotonic() + HANG_S
        while not watcher.result("inference/capacity")["parked"]:
            assert time.monotonic() < deadline, watcher.result("inference/capacity")
            # Requests of others are answered meanwhile.
            client.chat.completions.create(model="guide", messages=conversation("Hello"), max_tokens=2)
        assert watcher.result("inference/capacity")["in_use"] == 0
    small.wait_until_idle()


@pytest.mark.slow
def test_a_killed_door_gives_every_lease_back_long_before_its_streams_would_end(
    small: Daemon, before: DoorProcess
) -> None:
    with openai.OpenAI(base_url=f"{before.url}/v1", api_key=before.key, max_retries=0) as client:
        streams = [client.chat.completions.create(**ENDLESS) for _ in range(4)]
        assert all(next(iter(stream)) for stream in streams)
        with small.connect() as watcher:
            assert watcher.result("inference/capacity")["in_use"] == 4
            written = samples(watcher)["card_inter_token_seconds_count", ""]
            before.kill()
            small.wait_until_idle()
            totals = watcher.result("daemon/status")["totals"]
            assert (totals["cancelled"], totals["failed"]) == (4, 0)
            assert samples(watcher)["card_inter_token_seconds_count", ""] - written < 4 * ENDLESS["max_tokens"] / 2


@pytest.mark.slow
def test_streams_of_a_killed_daemon_end_with_an_error_and_its_successor_serves(
    small: Daemon, before: DoorProcess, folder: Path
) -> None:
    with openai.OpenAI(base_url=f"{before.url}/v1", api_key=before.key, max_retries=0) as client:
        stream = client.chat.completions.create(**ENDLESS)
        chunks = iter(stream)
        assert next(chunks)
        small.kill()
        with pytest.raises(openai.APIError, match="lost"):
            list(chunks)
        hello: dict[str, Any] = {"model": "guide", "messages": conversation("Hello"), "max_tokens": 2}
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**hello)
        assert caught.value.status_code == 503
        successor = Daemon(folder, "--capacity", "2").ready()
        try:
            assert client.chat.completions.create(**hello).choices[0].message.content
        finally:
            successor.stop()


def healthy(client: socket.socket, request: bytes) -> None:
    """Send a request and read its whole answer, which may come in pieces."""
    client.sendall(request)
    received = b""
    while not received.endswith(b'{"status":"ok"}'):
        received += client.recv(4096)
    assert received.startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_idle_connections_cost_little_memory(small: Daemon, folder: Path) -> None:
    with door_before(folder, small.path) as door:
        request = f"GET /health HTTP/1.1\r\nHost: localhost:{door.port}\r\n\r\n".encode()
        process = psutil.Process(door.process.pid)
        clients = []
        try:
            for _ in range(1000):
                client = socket.create_connection(("127.0.0.1", door.port))
                clients.append(client)
                if len(clients) == 10:
                    before = process.memory_info().rss
                healthy(client, request)
            assert process.memory_info().rss - before < 30 * 2**20
            healthy(clients[0], request)
        finally:
            for client in clients:
                client.close()
