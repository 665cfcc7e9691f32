"""Loading and unloading of models: permissions, progress and answers."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from car_daemon.connections.call import RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.methods.models import ModelMethods
from car_daemon.models.entry import ModelEntry, ModelPool
from car_daemon.models.manager import ModelManager
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_protocol.errors import RpcError
from car_protocol.models import LoadParams, LoadProgress, Model
from tests.daemon.links import ready_of

ADMIN, OTHER = 1000, 1001
READY = ready_of()


class FakeConnection:
    """A connection of a user that keeps its notifications."""

    def __init__(self, uid: int) -> None:
        self.user = self.identity = Identity(uid)
        self.notified: list[LoadProgress] = []

    def notify(self, _method: str, params: LoadProgress) -> None:
        self.notified.append(params)


class World:
    """Two models, a keeper that remembers what it was asked for, and the answers by id."""

    def __init__(self) -> None:
        settings = {name: ModelSettings(Path(__file__)) for name in ("a", "b")}
        self.methods = ModelMethods(
            pool := ModelPool(
                settings,
                "a",
                on_change=lambda entry: self.methods.changed(entry),
                on_progress=lambda entry: self.methods.advanced(entry),
            ),
            lambda: cast(ModelManager, self),
            describe=lambda entry, _: cast(Model, (entry.name, entry.state)),
            permit=self.permit,
            draining=lambda: self.draining,
        )
        self.entry = pool.named("b")
        self.draining = False
        self.asked: list[str] = []
        self.connection = FakeConnection(ADMIN)
        self.answers: dict[Any, Any] = {}

    def permit(self, caller: Identity) -> None:
        if caller.number != ADMIN:
            raise RpcError("not_permitted")

    def load(self, entry: ModelEntry) -> None:
        self.asked.append(f"load {entry.name}")

    def unload(self, entry: ModelEntry) -> None:
        self.asked.append(f"unload {entry.name}")

    def changed(self, _entry: ModelEntry) -> None:
        self.asked.append("changed")

    def call(self, method: str, request_id: int, *, progress: bool = False) -> RpcCall:
        def end(_call: RpcCall, response: bytes) -> None:
            message = json.loads(response)
            error = message.get("error")
            self.answers[request_id] = tuple(message["result"]) if error is None else (error["data"], error["code"])

        call = RpcCall(request_id, 0, end, cast(Any, SimpleNamespace(blocked=False)))
        params = LoadParams(model="b", progress=progress)
        result = self.methods.table()[method](cast(Connection, self.connection), call, params)
        if result is not None:
            call.result(result)
        return call


@pytest.mark.parametrize("method", ["models/load", "models/unload"])
def test_only_administrators_may_and_not_while_the_daemon_drains(method: str) -> None:
    world = World()
    world.connection = FakeConnection(OTHER)
    with pytest.raises(RpcError) as refused:
        world.call(method, 1)
    assert refused.value.reason == "not_permitted"
    world.connection, world.draining = FakeConnection(ADMIN), True
    with pytest.raises(RpcError) as refused:
        world.call(method, 2)
    assert (refused.value.reason, world.asked) == ("draining", [])


async def test_all_calls_that_wait_for_a_load_are_answered_at_its_end() -> None:
    world = World()
    world.call("models/load", 1)
    world.entry.become("loading")
    world.call("models/load", 2, progress=True)
    world.entry.replicas[0].advance(0.5)
    world.entry.replicas[0].become("ready", ready=READY)
    await asyncio.sleep(0)
    assert world.answers == {1: ("b", "ready"), 2: ("b", "ready")}
    total = world.entry.size_bytes or 0
    assert world.connection.notified == [LoadProgress(2, "b", round(total / 2), total)]
    assert not world.methods.is_awaited(world.entry)


def test_a_load_that_cannot_be_is_an_error_with_its_reason_and_figures() -> None:
    world = World()
    for request_id, state in ((1, "failed"), (2, "unloaded")):
        world.entry.become("unloaded")
        world.call("models/load", request_id)
        world.entry.become("loading")
        world.entry.become(cast(Any, state), reason="a fixed text", shortage={"needed_bytes": 2})
        data, code = world.answers[request_id]
        assert (code, data["why"], data["needed_bytes"]) == (1004, "a fixed text", 2)


def test_a_load_that_has_to_wait_for_an_unloading_is_not_ended_by_it() -> None:
    world = World()
    world.entry.become("draining")
    world.call("models/load", 1)
    world.entry.become("unloaded")
    assert world.answers == {}
    assert world.methods.is_awaited(world.entry)


def test_an_unloading_is_answered_once_the_model_is_gone_and_at_once_where_it_is() -> None:
    world = World()
    world.call("models/unload", 1)
    assert world.answers == {1: ("b", "unloaded")}
    world.entry.replicas[0].become("ready", ready=READY)
    world.call("models/unload", 2)
    world.entry.become("draining")
    assert 2 not in world.answers
    world.entry.become("unloaded")
    assert world.answers[2] == ("b", "unloaded")
    assert world.asked == ["unload b"]


def test_a_cancelled_call_gets_no_end_and_the_others_wait_on() -> None:
    world = World()
    first = world.call("models/load", 1)
    world.call("models/load", 2)
    first.cancel("cancelled")
    assert world.answers[1][1] == -32800
    world.entry.become("failed", reason="a fixed text")
    assert world.answers[2][1] == 1004
    assert world.answers[1][1] == -32800


def test_the_end_of_the_daemon_answers_all_waiting_calls() -> None:
    world = World()
    world.entry.become("loading")
    world.call("models/load", 1)
    world.call("models/unload", 2)
    world.methods.refuse_all("draining")
    assert {code for _, code in world.answers.values()} == {1003}
    assert len(world.answers) == 2
