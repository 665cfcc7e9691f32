"""The cost of an event, counted in calls, as more and more requests wait."""

import pytest

from car_daemon.scheduler.account import TURN
from car_daemon.scheduler.backlog import QueueBounds
from tests.daemon.scheduler.fakes import World
from tests.pace import calls

ROUNDS = 60


def cost(waiting: int, limit: int) -> float:
    """Return the calls of the events of a request's life while others wait: in the queue, or held back before it."""
    world = World(bounds=QueueBounds(limit=limit))
    engine = world.start_engine(sequences=4)

    def submit(number: int) -> None:
        world.submit(client=(number % 10, f"label {number}"), process=number % 100)
        world.prepare_all(engine)

    def live() -> None:
        for number in range(ROUNDS):
            key = min(engine.running)
            world.advance(key, TURN)
            world.end(engine, key)
            submit(waiting + number)

    for number in range(waiting):
        submit(number)
    live()
    return calls(live) / ROUNDS


@pytest.mark.parametrize("limit", [100_000, 64])
def test_an_event_costs_the_logarithm_of_what_waits(limit: int) -> None:
    few, many = cost(200, limit), cost(3200, limit)
    assert many <= few * 1.6, (few, many)
