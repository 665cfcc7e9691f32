"""Capacity, health, figures, and llama-server's endpoints about models."""

import asyncio
from typing import Any

import pytest

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


async def test_properties_are_those_of_llama_server(offline: OfflineDoor, fake: FakeDaemon) -> None:
    fake.answers["models/list"] = {"models": [model(can=("chat", "tools", "images"))]}
    props = (await offline.get("/props")).json
    assert props["default_generation_settings"]["n_ctx"] == model()["context_tokens"]
    assert props["modalities"]["vision"]
    assert props["chat_template_caps"]["supports_tools"]
    assert (await offline.get("/props?model=other")).status == 404


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
