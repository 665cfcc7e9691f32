"""Capacity, health, figures, and llama-server's endpoints about models."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from car_client.door.keys import add_key, remove_key
from car_http.answering import Pace
from car_http.feeds import MOST_STREAMS
from car_protocol.errors import RpcError
from tests.client.fake_daemon import FakeDaemon
from tests.client.samples import model
from tests.door.support import Answer, OfflineDoor
from tests.e2e.support import conversation

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "guide", "messages": conversation("Hi")}
SSE = {"accept": "text/event-stream"}


async def test_capacity_is_the_daemons_object(offline: OfflineDoor) -> None:
    answer = await offline.get("/card/capacity")
    assert answer.json["capacity"] == 4
    assert answer.headers["cache-control"] == "no-store"


async def test_every_change_of_capacity_is_an_event(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = Answer()
    task = asyncio.create_task(offline.into(answer, "GET", "/card/capacity", b"", SSE))
    await answer.began.wait()
    answer.began.clear()
    await asyncio.to_thread(fake.declare, 7)
    await answer.began.wait()
    answer.left.set()
    await task
    assert [event["capacity"] for event in answer.events] == [4, 7]
    assert b"event: capacity\n" in answer.body


async def test_a_watch_of_capacity_ends_with_the_daemon(offline: OfflineDoor, fake: FakeDaemon) -> None:
    answer = Answer()
    task = asyncio.create_task(offline.into(answer, "GET", "/card/capacity", b"", SSE))
    await answer.began.wait()
    await asyncio.to_thread(fake.drop)
    await task
    assert answer.events[-1]["error"]["code"] == "daemon_unavailable"


async def test_the_daemon_gets_one_call_a_second_however_many_requests_ask_for_the_health(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    answers = await asyncio.gather(*(offline.get("/health") for _ in range(100)))
    assert {answer.status for answer in answers} == {200}
    assert (len(fake.calls), fake.accepted) == (1, 1)
    offline.now += 0.9
    await offline.get("/health")
    assert len(fake.calls) == 1
    offline.now += 0.1
    await offline.get("/health")
    assert len(fake.calls) == 2


async def test_a_daemon_that_is_gone_is_looked_for_once_a_second(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.stop()
    answers = [await offline.get("/health") for _ in range(3)]
    assert [answer.json["error"]["code"] for answer in answers] == ["daemon_unavailable"] * 3
    fake.start()
    assert (await offline.get("/health")).status == 503
    offline.now += 1
    assert (await offline.get("/health")).status == 200


async def test_nobody_is_told_the_path_of_a_daemon_that_is_gone(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.stop()
    stranger = await offline.request("GET", "/health", b"", {"host": "localhost"}, unix=False)
    for answer in (stranger, await offline.get("/v1/models"), await offline.get("/card/capacity")):
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
        message = answer.json["error"]["message"]
        assert message.startswith("no daemon answers; start the daemon")
        assert str(fake.path) not in message


class Listening:
    """A stream of events by a key, or by the socket."""

    def __init__(self, door: OfflineDoor, key: str | None = None, path: str = "/card/capacity") -> None:
        self.answer = Answer()
        headers = SSE | ({"host": "localhost", "authorization": f"Bearer {key}"} if key else {})
        self._task = asyncio.create_task(door.into(self.answer, "GET", path, b"", headers, unix=key is None))

    async def more(self) -> None:
        """Wait for a further event."""
        await self.answer.began.wait()
        self.answer.began.clear()

    async def leave(self) -> None:
        """Leave, and wait until the door noticed."""
        self.answer.left.set()
        await self._task

    async def end(self) -> Answer:
        """Wait for the end."""
        await self._task
        return self.answer


async def test_all_streams_of_capacity_share_one_subscription(offline: OfflineDoor, fake: FakeDaemon) -> None:
    streams = [Listening(offline) for _ in range(20)]
    for stream in streams:
        await stream.more()
    late = Listening(offline)
    await late.more()
    assert fake.accepted == 1
    await asyncio.to_thread(fake.declare, 7)
    for stream in (*streams, late):
        await stream.more()
        await stream.leave()
        assert [event["capacity"] for event in stream.answer.events] == [4, 7]
    await asyncio.to_thread(fake.wait_until_gone)


async def test_a_stream_that_begins_later_first_gets_the_figures_of_that_moment(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    """The counts change without a notification, so the newest one may be old."""
    first = Listening(offline)
    await first.more()
    fake.capacity_members["in_use"] = 3
    late = Listening(offline)
    await late.more()
    assert [event["in_use"] for event in late.answer.events] == [3]
    assert [event["in_use"] for event in first.answer.events] == [1]
    for stream in (first, late):
        await stream.leave()


async def test_streams_of_several_models_have_a_subscription_each(offline: OfflineDoor, fake: FakeDaemon) -> None:
    streams = [Listening(offline, path="/card/capacity" + query) for query in ("", "?model=guide", "?model=guide")]
    for stream in streams:
        await stream.more()
    assert fake.accepted == 2
    assert sorted(call.params for call in fake.calls) == [b'{"subscribe":true,"model":"guide"}', b'{"subscribe":true}']
    for stream in streams:
        await stream.leave()


async def test_the_streams_of_a_lost_daemon_all_end_and_later_ones_begin_anew(
    offline: OfflineDoor, fake: FakeDaemon
) -> None:
    streams = [Listening(offline) for _ in range(3)]
    for stream in streams:
        await stream.more()
    await asyncio.to_thread(fake.drop)
    for stream in streams:
        assert (await stream.end()).events[-1]["error"]["code"] == "daemon_unavailable"
    later = Listening(offline)
    await later.more()
    await later.leave()
    assert later.answer.status == 200


@pytest.mark.parametrize("path", ["/card/capacity", "/card/events", "/models/sse"])
async def test_a_stream_of_a_door_that_ends_has_an_end(offline: OfflineDoor, path: str) -> None:
    stream = Listening(offline, path=path)
    await stream.more()
    offline.feeds.end()
    assert (await stream.end()).ended


async def test_a_stream_ends_with_its_key_though_nothing_changes(fake: FakeDaemon, folder: Path) -> None:
    key = add_key(folder / "keys", "app").secret
    async with OfflineDoor(fake.path, folder / "keys", pace=Pace(alive_s=0.01)) as door:
        stream = Listening(door, key)
        await stream.more()
        await stream.more()
        assert stream.answer.comments == ["waiting"]
        assert remove_key(folder / "keys", "app")
        answer = await stream.end()
    assert (answer.ended, [event["capacity"] for event in answer.events]) == (True, [4])


async def test_a_key_has_so_many_streams_of_models_and_no_more(fake: FakeDaemon, folder: Path) -> None:
    key = add_key(folder / "keys", "hog").secret
    async with OfflineDoor(fake.path, folder / "keys") as door:
        streams = [Listening(door, key, "/models/sse") for _ in range(MOST_STREAMS)]
        for stream in streams:
            await stream.more()
        refused = await Listening(door, key, "/models/sse").end()
        assert (refused.status, refused.json["error"]["code"]) == (429, "too_many_streams")
        for stream in streams:
            await stream.leave()
        again = Listening(door, key, "/models/sse")
        await again.more()
        await again.leave()


async def test_a_key_has_so_many_streams_of_capacity_and_no_more(fake: FakeDaemon, folder: Path) -> None:
    keys = {name: add_key(folder / "keys", name).secret for name in ("hog", "other")}
    async with OfflineDoor(fake.path, folder / "keys") as door:
        streams = [Listening(door, keys["hog"]) for _ in range(MOST_STREAMS)]
        for stream in streams:
            await stream.more()
        refused = await Listening(door, keys["hog"]).end()
        assert (refused.status, refused.json["error"]["code"]) == (429, "too_many_streams")
        assert "64 streams of events" in refused.json["error"]["message"]
        await streams.pop().leave()
        streams += [Listening(door, keys["hog"]), Listening(door, keys["other"])]
        for stream in streams[-2:]:
            await stream.more()
        for stream in streams:
            await stream.leave()
    assert fake.accepted == 1


async def test_the_doors_own_figures_name_no_path_that_a_client_chose(offline: OfflineDoor, fake: FakeDaemon) -> None:
    await offline.post(CHAT, HELLO)
    fake.answers["infer"] = RpcError("overloaded", why="queue full")
    await offline.post(CHAT, HELLO)
    await offline.get("/v1/models/secret-name")
    await offline.get("/secret-path")
    text = (await offline.get("/metrics")).body.decode()
    assert f'card_http_requests_total{{endpoint="{CHAT}",status="200"}} 1' in text
    assert f'card_http_requests_total{{endpoint="{CHAT}",status="429"}} 1' in text
    assert 'endpoint="other",status="404"} 1' in text
    assert "secret" not in text
    assert "card_http_in_flight 1" in text


async def test_documents_are_ranked(offline: OfflineDoor, fake: FakeDaemon) -> None:
    body = {"model": "guide", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 9, "return_documents": True}
    results = (await offline.post("/v1/rerank", body)).json["results"]
    assert [(result["index"], result["document"]["text"]) for result in results] == [(1, "b"), (0, "a")]
    assert fake.params("rerank") == {"model": "guide", "query": "q", "documents": ["a", "b"], "top_n": 2}
    assert (await offline.post("/v1/rerank", body | {"documents": [1]})).status == 400


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_models_are_loaded_and_unloaded(offline: OfflineDoor, fake: FakeDaemon, verb: str) -> None:
    fake.answers[f"models/{verb}"] = model()
    assert (await offline.post(f"/models/{verb}", {"model": "guide"})).json == {"success": True}
    assert fake.params(f"models/{verb}") == {"model": "guide"}
    fake.answers[f"models/{verb}"] = RpcError("not_permitted")
    assert (await offline.post(f"/models/{verb}", {"model": "guide"})).status == 403


async def test_states_of_models_are_watched(offline: OfflineDoor) -> None:
    answer = Answer()
    task = asyncio.create_task(offline.into(answer, "GET", "/models/sse", b"", {}))
    await answer.began.wait()
    answer.left.set()
    await task
    assert answer.events == [{"model": "guide", "event": "status_change", "data": {"status": "loaded"}}]
