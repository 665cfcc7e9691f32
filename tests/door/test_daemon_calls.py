"""Calls of the daemon by all keys together: the newest request of the key with most of them gives way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from car_client.door.keys import add_key
from car_http.crowds import DaemonCalls
from tests.client.fake_daemon import FakeDaemon
from tests.door.support import Answer, OfflineDoor
from tests.e2e.support import conversation

CHAT: dict[str, Any] = {"model": "guide", "messages": conversation("Hi")}


class Person:
    """A key of a door, with the answers to its requests in the order in which it sent them."""

    def __init__(self, door: OfflineDoor, key: str) -> None:
        self._door = door
        self._headers = {"content-type": "application/json", "host": "localhost", "authorization": f"Bearer {key}"}
        self.answers: list[Answer] = []
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, path: str, body: dict[str, Any]) -> "asyncio.Task[None]":
        """Send a request and stay until it is answered."""
        self.answers.append(Answer())
        call = self._door.into(self.answers[-1], "POST", path, msgspec.json.encode(body), self._headers, unix=False)
        self.tasks.append(asyncio.create_task(call))
        return self.tasks[-1]

    async def count(self) -> int:
        """Send a request that the daemon answers; return its status."""
        await self.send("/tokenize", {"content": "Hi"})
        return self.answers[-1].status

    @property
    def refused(self) -> list[int]:
        """The places of the requests that gave way."""
        return [place for place, each in enumerate(self.answers) if b"too_many_requests" in each.body]


@asynccontextmanager
async def three_people(fake: FakeDaemon, folder: Path, most: int) -> AsyncIterator[list[Person]]:
    """Yield three people before a daemon that ends no inference, and a door with `most` calls of it."""
    fake.silent.add("infer")
    fake.silent_after = 1
    async with OfflineDoor(fake.path, folder / "keys", calls=DaemonCalls(most)) as door:
        people = [Person(door, add_key(folder / "keys", name).secret) for name in ("anna", "bob", "carl")]
        yield people
        tasks = [task for person in people for task in person.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_request_that_gives_back_a_part_keeps_its_age() -> None:
    calls, ended = DaemonCalls(4), []
    older, newer = (partial(lambda name, problem: ended.append(name), name) for name in ("older", "newer"))
    calls.take("anna", older, 3)
    calls.take("anna", newer, 1)
    calls.give_back(older, 1)
    calls.take("bob", lambda _: None, 2)
    assert ended == ["newer"]


@pytest.mark.parametrize("method", ["infer", "infer_stream"])
async def test_people_with_all_calls_of_the_daemon_leave_room_for_another(
    fake: FakeDaemon, folder: Path, method: str
) -> None:
    async with three_people(fake, folder, most=6) as (anna, bob, carl):
        for sent in range(6):
            (anna if sent < 4 else bob).send("/v1/chat/completions", CHAT | {"stream": method == "infer_stream"})
            await fake.saw(method, sent + 1)
        assert await carl.count() == 200
        await anna.tasks[3]
        assert (anna.refused, bob.refused) == ([3], [])
        # Places that were given back count no more.
        assert [await carl.count() for _ in range(8)] == [200] * 8
        assert (anna.refused, bob.refused) == ([3], [])


async def test_who_has_most_calls_of_the_daemon_is_refused_the_next(fake: FakeDaemon, folder: Path) -> None:
    async with three_people(fake, folder, most=3) as (anna, bob, _):
        for sent, person in enumerate((anna, anna, bob)):
            person.send("/v1/chat/completions", CHAT)
            await fake.saw("infer", sent + 1)
        await anna.send("/v1/chat/completions", CHAT)
        assert anna.refused == [2]
        answer = anna.answers[2]
        assert (answer.status, answer.json["error"]["code"]) == (429, "too_many_requests")
        assert answer.headers["retry-after-ms"].isdigit()


async def test_each_prompt_of_a_request_is_a_call_and_the_request_gives_way_as_a_whole(
    fake: FakeDaemon, folder: Path
) -> None:
    async with three_people(fake, folder, most=6) as (anna, bob, carl):
        anna.send("/v1/completions", {"model": "guide", "prompt": ["a", "b", "c", "d"]})
        await fake.saw("infer", 4)
        for sent in (5, 6):
            bob.send("/v1/chat/completions", CHAT)
            await fake.saw("infer", sent)
        assert await carl.count() == 200
        await anna.tasks[0]
        assert (anna.answers[0].status, anna.refused, bob.refused) == (429, [0], [])
        await asyncio.to_thread(fake.wait_until_gone, 4)
        for sent in (7, 8, 9):
            bob.send("/v1/chat/completions", CHAT)
            await fake.saw("infer", sent)
        assert await carl.count() == 200
        assert bob.refused == []
