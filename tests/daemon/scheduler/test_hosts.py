"""Waiters over engines on several machines: a lease that ends goes to the requests that it is free for."""

import pytest

from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Request, State
from car_protocol.infer import Priority
from tests.daemon.scheduler.fakes import FakeEngine, World

HOSTS = (None, "n1")
MANY = 40


class CountingGate(Gate):
    """A gate that counts the leases that are tried."""

    tries = 0

    def try_lease(self, request: Request) -> int | None:
        self.tries += 1
        return super().try_lease(request)


def run(world: World, model: str = "m", priority: Priority = "latency_critical") -> Request:
    """Submit a request and let whichever engine prepares it report that."""
    request = world.submit(model, priority=priority)
    preparer = world.engine_with(request.key)
    assert preparer is not None
    world.prepare(preparer, request.key)
    return request


def engine_of(world: World, request: Request) -> FakeEngine:
    """Return the engine that runs or parks a request."""
    (engine,) = (each for each in world.engines.values() if request.key in each.running | each.parked)
    return engine


def park_all(world: World, requests: list[Request]) -> None:
    """Let the engines report their requests as parked."""
    for request in requests:
        world.set_aside(engine_of(world, request), request.key)


@pytest.mark.parametrize("host", HOSTS)
def test_parked_work_resumes_when_a_lease_of_another_engine_of_a_pressed_machine_ends(host: str | None) -> None:
    world = World()
    for _ in range(2):
        world.start_engine("m", 2, host=host)
    throughput = [run(world, priority="throughput") for _ in range(4)]
    urgent = [run(world) for _ in range(4)]
    park_all(world, throughput)
    first = engine_of(world, urgent[0])
    # The first engine goes on with urgent work alone, the other one has parked work alone.
    for request in throughput:
        if engine_of(world, request) is first:
            world.cancel(request.key)
            world.end(first, request.key)
    parked = [request for request in throughput if request.state is State.PARKED]
    world.press(host, "critical")
    for request in urgent:
        if (engine := engine_of(world, request)) is not first:
            world.end(engine, request.key)
    assert [request.state for request in parked] == [State.PARKED] * 2
    assert world.gate.available("m") == 0
    for key in sorted(first.running):
        world.end(first, key)
    assert [request.state for request in parked] == [State.RUNNING] * 2


@pytest.mark.parametrize("limit", [None, 3])
def test_a_lease_that_ends_is_tried_for_its_own_engines_parked_work_alone(limit: int | None) -> None:
    world = World(limit, kind=CountingGate)
    gate = world.gate
    assert isinstance(gate, CountingGate)
    for number in range(MANY):
        world.start_engine("m", 1, host=f"n{number}")
    throughput = [run(world, priority="throughput") for _ in range(MANY)]
    urgent = [run(world) for _ in range(MANY)]
    park_all(world, throughput)
    assert [request.state for request in urgent] == [State.RUNNING] * MANY
    gate.tries = 0
    for request in urgent:
        world.end(engine_of(world, request), request.key)
    assert [request.state for request in throughput] == [State.RUNNING] * MANY
    assert gate.tries <= 3 * MANY


def test_the_limit_of_this_machine_lets_a_lease_that_ends_go_to_another_model() -> None:
    world = World(machine_limit=1)
    here = world.start_engine("a", 1)
    world.start_engine("b", 1, host="n1")
    world.start_engine("b", 1)
    first, on_a, waits = run(world, "b"), run(world, "a"), run(world, "b")
    assert (engine_of(world, first).host, on_a.state, waits.state) == ("n1", State.RUNNING, State.WAITING)
    world.end(here, on_a.key)
    assert waits.state is State.RUNNING
