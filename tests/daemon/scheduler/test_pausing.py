"""Requests paused because their client does not read: they give up their leases, and resume later."""

from car_daemon.scheduler.request import State
from tests.daemon.scheduler.fakes import FakeEngine, World


def world_of(sequences: int = 1) -> tuple[World, FakeEngine]:
    """Return a world whose engine is full of urgent work."""
    world = World()
    engine = world.start_engine(sequences=sequences)
    for _ in range(sequences):
        world.advance(world.run_one(engine).key, streams=True)
    return world, engine


def test_a_paused_request_gives_its_lease_to_a_waiter() -> None:
    world, engine = world_of()
    world.run_one(engine)
    world.pause(1)
    assert engine.to_park == {1}
    world.set_aside(engine, 1)
    assert (engine.running, engine.parked) == ({2}, {1})


def test_a_paused_request_gets_no_lease_however_many_are_free() -> None:
    world, engine = world_of(2)
    world.pause(1)
    world.set_aside(engine, 1)
    assert world.gate.available("m") == 1
    assert world.requests[1].state is State.PARKED
    world.unpause(1)
    assert engine.running == {1, 2}


def test_an_end_of_the_pause_before_the_engine_parked_it_has_it_resume() -> None:
    world, engine = world_of()
    world.pause(1)
    world.unpause(1)
    world.set_aside(engine, 1)
    assert engine.running == {1}


def test_a_pause_is_not_counted_as_a_parking() -> None:
    world, engine = world_of()
    for _ in range(5):
        world.pause(1)
        world.set_aside(engine, 1)
        world.unpause(1)
    assert world.requests[1].parking.count == 0
    assert engine.running == {1}


def test_pausing_twice_is_pausing_once() -> None:
    world, engine = world_of()
    world.pause(1)
    world.pause(1)
    world.set_aside(engine, 1)
    world.pause(1)
    world.unpause(1)
    assert engine.running == {1}


def test_work_that_was_parked_for_another_stays_parked_while_it_is_paused() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine, priority="throughput")
    world.run_one(engine)
    world.set_aside(engine, 1)
    world.pause(1)
    world.end(engine, 2)
    assert engine.running == set()
    world.unpause(1)
    assert engine.running == {1}


def test_after_a_pause_a_request_waits_behind_clients_that_were_served_less() -> None:
    world, engine = world_of()
    world.advance(1, 500)
    world.pause(1)
    world.set_aside(engine, 1)
    world.run_one(engine, client=(0, "one"))
    world.run_one(engine, client=(0, "other"))
    world.unpause(1)
    world.end(engine, 2)
    assert engine.running == {3}
    world.end(engine, 3)
    assert engine.running == {1}


def test_a_paused_request_can_be_cancelled_and_leaves_nothing() -> None:
    world, engine = world_of()
    world.pause(1)
    world.set_aside(engine, 1)
    world.cancel(1)
    world.end(engine, 1)
    world.unpause(1)
    assert world.endings[1] == ["cancelled"]
    assert (world.gate.in_use, len(world.scheduler.waiting.requests)) == (0, 0)


def test_a_request_that_refuses_to_wait_is_not_refused_for_a_paused_one() -> None:
    world, engine = world_of()
    world.pause(1)
    world.set_aside(engine, 1)
    request = world.submit(wait=False)
    world.prepare(engine, request.key)
    assert engine.running == {2}


def test_a_paused_request_is_lost_with_its_engine() -> None:
    world, engine = world_of()
    world.pause(1)
    world.set_aside(engine, 1)
    world.lose_engine(engine)
    assert world.endings[1] == ["engine_lost"]


def test_a_request_that_was_not_started_is_not_paused() -> None:
    world, engine = world_of()
    world.run_one(engine)
    world.pause(2)
    world.end(engine, 1)
    assert engine.running == {2}
