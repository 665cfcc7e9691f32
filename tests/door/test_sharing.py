"""Keys of the door, programs and labels beside a flood of one of them: each gets an answer while the flood goes on."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.door.support import DoorProcess, door_before
from tests.e2e.support import CANARY, PATIENCE_S, Daemon, RawClient, conversation, endless, running

pytestmark = pytest.mark.slow
KEYS = {"default": "d" * 40, "obsidian": "o" * 40}
SEQUENCES, PLACES, LONG_STREAMS, LABELS = 4, 64, 100, 300
# No answer of a flood ends before its last request came, however slow the machine.
TOKENS = 3500
_WRITTEN = re.compile(rb'"content":"[^"]')


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Daemon, DoorProcess]]:
    """A daemon of four sequences and a queue of 64 places, with a door of two keys in front of it."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        keys = Path(name) / "config" / "car" / "http-keys"
        keys.parent.mkdir(parents=True)
        keys.write_text("".join(f"{name} {secret}\n" for name, secret in KEYS.items()))
        keys.chmod(0o600)
        with (
            running(Path(name), "--capacity", str(SEQUENCES)) as daemon,
            door_before(Path(name), daemon.ready().path) as door,
        ):
            yield daemon, door


@pytest.fixture
def door(shared: tuple[Daemon, DoorProcess]) -> DoorProcess:
    """The door."""
    return shared[1]


def in_flight(client: RawClient) -> int:
    """Return the requests that the daemon has accepted and not answered."""
    return int(client.result("daemon/status")["totals"]["in_flight"])


@pytest.fixture
def daemon(shared: tuple[Daemon, DoorProcess]) -> Iterator[Daemon]:
    """The daemon, idle again after each test."""
    yield shared[0]
    with shared[0].connect() as client:
        while in_flight(client):
            pass


def wait_until_in_flight(daemon: Daemon, count: int) -> None:
    """Return once an idle daemon has so many requests; it answers none of them before it has the last."""
    with daemon.connect() as client:
        completed = client.result("daemon/status")["totals"]["completed"]
        while in_flight(client) < count:
            assert client.result("daemon/status")["totals"]["completed"] == completed, "an answer ended too early"


async def post(door: DoorProcess, key: str, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a chat with a key of this name."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    body = msgspec.json.encode({"model": "guide", "messages": conversation(CANARY), **more})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEYS[key]}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@asynccontextmanager
async def flood(door: DoorProcess, daemon: Daemon, users: list[str]) -> AsyncIterator[None]:
    """Keep streams of the default key open, one for each label."""
    more = {"stream": True, "ignore_eos": True, "max_tokens": TOKENS}
    streams = [await post(door, "default", user=user, **more) for user in users]
    try:
        wait_until_in_flight(daemon, len(users))
        yield
    finally:
        for _, writer in streams:
            writer.close()


async def status_line(door: DoorProcess, key: str) -> bytes:
    """Return the first line of a short answer to a key."""
    reader, writer = await post(door, key, max_tokens=2)
    with closing(writer):
        return await asyncio.wait_for(reader.readline(), PATIENCE_S)


@pytest.mark.parametrize(
    "users",
    [["one"] * LONG_STREAMS, ["obsidian"] * LONG_STREAMS, [f"u{number}" for number in range(LABELS)]],
    ids=["long streams", "long streams under the name of the other key", "fresh labels"],
)
async def test_a_key_and_another_program_get_answers_while_every_stream_of_another_key_goes_on(
    door: DoorProcess, daemon: Daemon, users: list[str]
) -> None:
    async with flood(door, daemon, users):
        assert b" 200 " in await status_line(door, "obsidian")
        with daemon.connect() as client:
            client.result("infer", {"prompt": CANARY, "max_tokens": 2})
            assert in_flight(client) > PLACES + SEQUENCES, "requests of the flood are still held back"


def test_a_label_gets_an_answer_beside_a_hundred_long_streams_of_another_label_of_its_program(daemon: Daemon) -> None:
    # A connection has at most 64 requests in flight.
    with daemon.connect() as one, daemon.connect() as another, daemon.connect() as client:
        for number in range(LONG_STREAMS):
            (one, another)[number % 2].send("infer_stream", endless(client="flood"))
        wait_until_in_flight(daemon, LONG_STREAMS)
        client.result("infer", {"prompt": CANARY, "client": "other", "max_tokens": 2})
        assert in_flight(client) > PLACES + SEQUENCES, "requests of the flood are still held back"


async def test_the_status_names_the_key_of_a_request(door: DoorProcess, daemon: Daemon) -> None:
    reader, writer = await post(door, "default", user="ann", stream=True, ignore_eos=True, max_tokens=TOKENS)
    with closing(writer), daemon.connect() as client:
        # Only a sequence writes: the head of the answer comes before, and a first message may have no text.
        while not _WRITTEN.search(await asyncio.wait_for(reader.readline(), PATIENCE_S)):
            pass
        (sequence,) = client.result("daemon/status")["sequences"]
        assert (sequence["tenant"], sequence["client"]) == ("default", "ann")
