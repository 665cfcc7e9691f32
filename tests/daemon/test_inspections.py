"""Who asks for what is in a model's file, and what they hear."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

from structlog.testing import capture_logs

from car_daemon.connection import Connection
from car_daemon.exchange import Exchange
from car_daemon.inspections import Inspections
from car_daemon.models.entry import ModelSettings
from car_daemon.models.inspection import Inspected, inspect
from car_daemon.models.pool import ModelPool
from car_protocol.envelope import Failure, Result
from car_protocol.models import Model, ModelDetails, ShowParams
from tests.daemon.models.files import model


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
            describe=lambda entry: cast(Model, entry.name),
            free_for=lambda _: 1 << 30,
            look=self.look,
        )
        self.answers: dict[int, Any] = {}
        self.answered = asyncio.Event()

    def look(self, settings: ModelSettings) -> Inspected:
        self.looked += 1
        assert self.let.wait(10)
        if self.fault is not None:
            raise self.fault
        return inspect(settings)

    def show(self, request_id: int, name: str = "a") -> Exchange:
        def end(_exchange: Exchange, response: Result | Failure) -> None:
            assert request_id not in self.answers
            self.answers[request_id] = response.result if isinstance(response, Result) else response.error.data
            self.answered.set()

        exchange = Exchange(request_id, 0, end, cast(Any, self))
        self.inspections.show(cast(Connection, None), exchange, ShowParams(model=name))
        return exchange

    def forget(self, _exchange: Exchange) -> None:
        """Be an outbox that forgets."""

    async def until(self, *requests: int) -> None:
        async with asyncio.timeout(10):
            while not self.answers.keys() >= set(requests):
                self.answered.clear()
                await self.answered.wait()


async def test_one_file_is_looked_into_at_a_time_and_all_who_ask_are_answered(tmp_path: Path) -> None:
    world = World(tmp_path)
    for request in (1, 2):
        world.show(request)
    world.show(3, "b")
    world.let.set()
    await world.until(1, 2, 3)
    first: ModelDetails = world.answers[1]
    assert first.model == cast(Model, "a")
    assert first.file
    assert first.estimate
    assert world.answers[3] == ModelDetails(model=cast(Model, "b"), why="the file cannot be read")
    world.show(4)
    await world.until(4)
    assert world.looked == 4


async def test_who_cancels_is_answered_at_once_and_the_others_as_before(tmp_path: Path) -> None:
    world = World(tmp_path)
    looking, waiting, other = (world.show(request) for request in (1, 2, 3))
    await asyncio.sleep(0)
    looking.cancel("cancelled")
    waiting.cancel("cancelled")
    assert {request: answer["reason"] for request, answer in world.answers.items()} == {1: "cancelled", 2: "cancelled"}
    world.let.set()
    await world.until(3)
    other.cancel("cancelled")
    assert isinstance(world.answers[3], ModelDetails)


async def test_a_daemon_that_ends_answers_who_waits(tmp_path: Path) -> None:
    world = World(tmp_path)
    for request in (1, 2):
        world.show(request)
    await asyncio.sleep(0)
    world.inspections.refuse_all("draining")
    assert {answer["reason"] for answer in world.answers.values()} == {"draining"}
    assert world.answers.keys() == {1, 2}
    world.let.set()


async def test_a_look_that_fails_is_an_error_for_who_asked_and_the_next_one_is_tried(tmp_path: Path) -> None:
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
    assert isinstance(world.answers[2], ModelDetails)
