"""`supersede` at the door, whose requests reach the daemon on many connections."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.door.support import OfflineDoor
from tests.e2e.support import CANARY, Daemon, configured, conversation, endless, running

CHAT = "/v1/chat/completions"
KEYED = {"model": "guide", "messages": conversation(CANARY), "max_tokens": 2, "card": {"supersede": "editor"}}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon of one sequence with one place in its queue, which refuses who has none."""
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        flags = configured(Path(name), '[queue]\nlimit = 1\noverflow = "drop_newest"\n')
        with running(Path(name), "--capacity", "1", *flags) as daemon:
            yield daemon.ready()


async def test_a_newer_request_takes_the_place_of_the_older_one_in_a_full_queue(daemon: Daemon, folder: Path) -> None:
    async with OfflineDoor(daemon.path, folder / "http-keys") as door:
        with daemon.connect() as client:
            client.first_chunk(client.send("infer_stream", endless()))
            async with door.posting(CHAT, KEYED | {"stream": True}) as older:
                newer = asyncio.create_task(door.post(CHAT, KEYED))
            assert (await door.post(CHAT, KEYED | {"card": {}})).status == 429, "the queue is not full"
        answered = await newer
    assert older.events[-1]["error"]["code"] == "cancelled"
    assert (answered.status, answered.json["choices"][0]["finish_reason"]) == (200, "length")


async def test_a_newer_request_that_is_refused_leaves_the_older_one(daemon: Daemon, folder: Path) -> None:
    async with OfflineDoor(daemon.path, folder / "http-keys") as door:
        with daemon.connect() as client:
            client.first_chunk(client.send("infer_stream", endless()))
            async with door.posting(CHAT, KEYED | {"stream": True}) as older:
                too_long = KEYED | {"messages": conversation("word " * 20_000)}
                assert (await door.post(CHAT, too_long)).status == 400
                client.close()
    assert older.events[-1]["choices"][0]["finish_reason"] == "length"
