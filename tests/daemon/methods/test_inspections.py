"""Inspections of model files: one at a time, with an answer for every request."""

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from car_daemon.connections.call import RpcCall
from car_daemon.connections.connection import Connection
from car_daemon.methods.models import Inspections
from car_daemon.models.entry import ModelPool
from car_daemon.models.inspection import Abilities, Inspected, inspect
from car_daemon.models.settings import ModelSettings
from car_daemon.people.identity import Identity
from car_protocol.models import Model, ShowParams
from tests.daemon.captured_log import capture_logs
from tests.daemon.gguf.files import model
from tests.pace import HANG_S


class World:
    """Two models, one of which has a file; each look waits for `let`, unless it is set."""

    def __init__(self, folder: Path) -> None:
        self.path = model().write(folder / "m.gguf")
        settings = {"a": ModelSettings(self.path), "b": ModelSettings(folder / "none.gguf")}
        self.let = threading.Event()
        self.fault: Exception | None = None
        self.looked = 0
        self.inspections = Inspections(
            ModelPool(settings, "a", on_change=lambda _: None),
            describe=lambda entry, caller: cast(Model, f"{entry.name} for {caller.uid}"),
            free_for=lambda _: 1 << 30,
            abilities=Abilities(),
            look=self.look,
        )
        self.answers: dict[int, Any] = {}
        self.answered = asyncio.Event()

    def look(self, settings: ModelSettings) -> Inspected:
        self.looked += 1
        assert self.let.wait(HANG_S)
        if self.fault is not None:
            raise self.fault
        return inspect(settings)

    def show(self, request_id: int, name: str = "a", uid: int = 7) -> RpcCall:
        def end(_call: RpcCall, response: bytes) -> None:
            assert request_id not in self.answers
            message = json.loads(response)
            self.answers[request_id] = message["result"] if "result" in message else message["error"]["data"]
            self.answered.set()

        call = RpcCall(request_id, 0, end, cast(Any, SimpleNamespace(blocked=False)))
        self.inspections.show(cast(Connection, SimpleNamespace(identity=Identity(uid))), call, ShowParams(model=name))
        return call

    async def until(self, *requests: int) -> None:
        async with asyncio.timeout(HANG_S):
            while not self.answers.keys() >= set(requests):
                self.answered.clear()
                await self.answered.wait()


async def test_one_file_is_read_at_a_time_and_all_calls_are_answered(tmp_path: Path) -> None:
    world = World(tmp_path)
    for request in (1, 2):
        world.show(request)
    world.show(3, "b")
    world.let.set()
    await world.until(1, 2, 3)
    first = world.answers[1]
    assert first["model"] == "a for 7"
    assert first["file"]
    assert first["estimate"]
    assert world.answers[3] == {"model": "b for 7", "why": "the file cannot be read"}
    world.show(4)
    await world.until(4)
    assert world.looked == 4


async def test_users_take_turns_however_many_calls_one_of_them_has(tmp_path: Path) -> None:
    world = World(tmp_path)
    for request in range(1, 6):
        world.show(request)
    await asyncio.sleep(0)
    for request, uid in ((6, 8), (7, 8), (8, 9)):
        world.show(request, uid=uid)
    world.let.set()
    await world.until(*range(1, 9))
    assert list(world.answers) == [1, 2, 6, 8, 3, 7, 4, 5]


async def test_a_cancelled_call_is_answered_at_once_and_the_others_as_before(tmp_path: Path) -> None:
    world = World(tmp_path)
    looking, waiting, other = (world.show(request) for request in (1, 2, 3))
    await asyncio.sleep(0)
    looking.cancel("cancelled")
    waiting.cancel("cancelled")
    assert {request: answer["reason"] for request, answer in world.answers.items()} == {1: "cancelled", 2: "cancelled"}
    world.let.set()
    await world.until(3)
    other.cancel("cancelled")
    assert world.answers[3]["model"] == "a for 7"


async def test_a_daemon_that_ends_answers_waiting_calls(tmp_path: Path) -> None:
    world = World(tmp_path)
    for request in (1, 2):
        world.show(request)
    await asyncio.sleep(0)
    world.inspections.refuse_all("draining")
    assert {answer["reason"] for answer in world.answers.values()} == {"draining"}
    assert world.answers.keys() == {1, 2}
    world.let.set()


async def test_a_failed_inspection_is_an_error_for_its_call_and_the_next_one_is_tried(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fault = MemoryError("of /secret")
    world.let.set()
    with capture_logs() as logs:
        world.show(1)
        await world.until(1)
    assert world.answers[1]["reason"] == "internal_error"
    assert [(each["event"], each["error"]) for each in logs] == [("model.not_inspected", "MemoryError")]
    world.fault = None
    world.show(2)
    await world.until(2)
    assert world.answers[2]["model"] == "a for 7"
