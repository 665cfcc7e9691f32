"""Who may load and unload models, and what they hear."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from car_daemon.connection import Connection
from car_daemon.exchange import Exchange
from car_daemon.models.entry import ModelEntry, ModelSettings
from car_daemon.models.keeper import ModelKeeper
from car_daemon.models.pool import ModelPool
from car_daemon.peer import Peer
from car_daemon.residence import Residence
from car_protocol.envelope import Failure, Result
from car_protocol.errors import RpcError
from car_protocol.models import LoadParams, LoadProgress, Model
from tests.daemon.links import ready_of

ADMIN, OTHER = 1000, 1001
READY = ready_of()


class FakeConnection:
    """A connection of a user that keeps what it is told."""

    def __init__(self, uid: int) -> None:
        self.peer = Peer(uid, 1)
        self.told: list[LoadProgress] = []

    def notify(self, _method: str, params: LoadProgress) -> None:
        self.told.append(params)


class World:
    """Two models, a keeper that remembers what it was asked for, and the answers by id."""

    def __init__(self) -> None:
        settings = {name: ModelSettings(Path(__file__)) for name in ("a", "b")}
        self.residence = Residence(
            pool := ModelPool(
                settings,
                "a",
                on_change=lambda entry: self.residence.changed(entry),
                on_progress=lambda entry: self.residence.advanced(entry),
            ),
            lambda: cast(ModelKeeper, self),
            describe=lambda entry: cast(Model, (entry.name, entry.state)),
            permit=self.permit,
            draining=lambda: self.draining,
        )
        self.entry = pool.named("b")
        self.draining = False
        self.asked: list[str] = []
        self.connection = FakeConnection(ADMIN)
        self.answers: dict[Any, Any] = {}

    def permit(self, peer: Peer) -> None:
        if peer.uid != ADMIN:
            raise RpcError("not_permitted")

    def load(self, entry: ModelEntry) -> None:
        self.asked.append(f"load {entry.name}")

    def unload(self, entry: ModelEntry) -> None:
        self.asked.append(f"unload {entry.name}")

    def changed(self, _entry: ModelEntry) -> None:
        self.asked.append("changed")

    def call(self, method: str, request_id: int, *, progress: bool = False) -> Exchange:
        def end(_exchange: Exchange, response: Result | Failure) -> None:
            answer = response.result if isinstance(response, Result) else (response.error.data, response.error.code)
            self.answers[request_id] = answer

        exchange = Exchange(request_id, 0, end, cast(Any, FakeOutbox()))
        params = LoadParams(model="b", progress=progress)
        result = self.residence.table()[method](cast(Connection, self.connection), exchange, params)
        if result is not None:
            exchange.result(result)
        return exchange


class FakeOutbox:
    """Forgets."""

    def forget(self, _exchange: Exchange) -> None:
        """Do nothing."""


@pytest.mark.parametrize("method", ["models/load", "models/unload"])
def test_others_than_administrators_may_not_and_nobody_may_while_the_daemon_drains(method: str) -> None:
    world = World()
    world.connection = FakeConnection(OTHER)
    with pytest.raises(RpcError) as refused:
        world.call(method, 1)
    assert refused.value.reason == "not_permitted"
    world.connection, world.draining = FakeConnection(ADMIN), True
    with pytest.raises(RpcError) as refused:
        world.call(method, 2)
    assert (refused.value.reason, world.asked) == ("draining", [])


async def test_everybody_who_waits_for_a_load_hears_of_its_end() -> None:
    world = World()
    world.call("models/load", 1)
    world.entry.become("loading")
    world.call("models/load", 2, progress=True)
    world.entry.replicas[0].advance(0.5)
    world.entry.replicas[0].become("ready", ready=READY)
    await asyncio.sleep(0)
    assert world.answers == {1: ("b", "ready"), 2: ("b", "ready")}
    total = world.entry.size_bytes or 0
    assert world.connection.told == [LoadProgress(2, "b", round(total / 2), total)]
    assert not world.residence.wanted(world.entry)


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
    assert world.residence.wanted(world.entry)


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


def test_who_cancels_hears_nothing_of_the_end_and_the_others_wait_on() -> None:
    world = World()
    first = world.call("models/load", 1)
    world.call("models/load", 2)
    first.cancel("cancelled")
    assert world.answers[1][1] == -32800
    world.entry.become("failed", reason="a fixed text")
    assert world.answers[2][1] == 1004
    assert world.answers[1][1] == -32800


def test_the_end_of_the_daemon_answers_everybody() -> None:
    world = World()
    world.entry.become("loading")
    world.call("models/load", 1)
    world.call("models/unload", 2)
    world.residence.refuse_all("draining")
    assert {code for _, code in world.answers.values()} == {1003}
    assert len(world.answers) == 2
