"""Fairness, supersede and reported positions, through the scheduler."""

import pytest

from car_daemon.scheduler.account import TURN
from car_daemon.scheduler.backlog import Overflow, QueueBounds
from car_daemon.scheduler.replicas import EngineOffer
from car_daemon.scheduler.request import Request, RequestSpec, State
from tests.daemon.scheduler.fakes import FakeEngine, World, failure

ONE, OTHER = (0, "one"), (0, "other")


def test_the_client_that_was_served_least_goes_next() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    for client in (ONE, ONE, OTHER):
        world.run_one(engine, client=client)
    world.advance(1, TURN)
    world.end(engine, 1)
    assert engine.running == {3}


def test_one_client_does_not_get_all_leases_that_are_free_at_once() -> None:
    world = World()
    for client in (ONE, ONE, OTHER):
        world.submit(client=client)
    engine = world.start_engine(sequences=0)
    for key in (1, 2, 3):
        world.prepare(engine, key)
    world.gate.declare(engine.number, EngineOffer("m", 2))
    engine.sequences = 2
    world.do(world.scheduler.allocate(0.0))
    assert engine.running == {1, 3}


def test_long_answers_count_against_their_client() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    world.run_one(engine, client=ONE)
    world.run_one(engine, client=OTHER)
    for client in (ONE, OTHER):
        world.run_one(engine, client=client)
    world.advance(1, 500)
    world.end(engine, 2)
    assert 4 in engine.running


def test_a_newer_request_with_the_same_key_cancels_the_older() -> None:
    world = World()
    engine = world.start_engine()
    for key in ((1, "search"), (1, "other"), (2, "search"), (1, "search")):
        world.prepare(engine, world.submit(supersede=key).key)
    assert world.endings == {1: ["cancelled"], 2: [], 3: [], 4: []}
    assert world.fails[0].data == {"superseded": True}


def test_a_newer_request_that_is_refused_supersedes_nothing() -> None:
    world = World()
    engine = world.start_engine()
    world.prepare(engine, world.submit(supersede=(1, "search")).key)
    world.refuse(engine, world.submit(supersede=(1, "search")).key)
    assert world.endings == {1: [], 2: ["context_exceeded"]}


def test_an_older_request_that_is_prepared_later_is_superseded_all_the_same() -> None:
    world = World()
    engine = world.start_engine()
    older, newer = (world.submit(supersede=(1, "search")).key for _ in range(2))
    world.prepare(engine, newer)
    assert world.endings == {older: ["cancelled"], newer: []}
    world.prepare(engine, older)
    assert engine.running == {newer}


def test_a_superseded_request_that_runs_lets_go_of_its_sequence() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.prepare(engine, world.submit(supersede=(1, "search")).key)
    world.prepare(engine, world.submit(supersede=(1, "search")).key)
    world.end(engine, 1)
    assert engine.running == {2}


def test_a_request_that_was_refused_supersedes_nothing() -> None:
    world = World()
    world.submit(supersede=(1, "search"))
    request = Request(RequestSpec(key=9, model="m", arrived=0.0, wait=False, supersede=(1, "search")))
    assert failure(world.scheduler.submit(request, 0.0)).request is request
    assert world.endings[1] == []


def full_world(overflow: Overflow) -> tuple[World, FakeEngine]:
    """Return a world of which the queue is full: one runs, another client's and one with a key wait."""
    world = World(bounds=QueueBounds(limit=2, overflow=overflow))
    engine = world.start_engine(sequences=1)
    for key in (None, None, (1, "search")):
        world.prepare(engine, world.submit(supersede=key).key)
    return world, engine


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
def test_a_newer_request_takes_the_place_of_the_older_in_a_full_queue_and_of_no_other(overflow: Overflow) -> None:
    world, engine = full_world(overflow)
    newer = world.submit(supersede=(1, "search"))
    assert (world.endings[3], newer.state) == ([], State.PREPARING), "it may still turn out to be invalid"
    world.prepare(engine, newer.key)
    assert world.endings == {1: [], 2: [], 3: ["cancelled"], 4: []}
    assert len(world.scheduler.backlog) == 2


def test_a_newer_request_that_may_not_be_held_back_takes_the_place_of_the_older() -> None:
    world, engine = full_world("block")
    world.prepare(engine, world.submit(supersede=(1, "search"), queue=False).key)
    assert world.endings == {1: [], 2: [], 3: ["cancelled"], 4: []}
    world.submit(supersede=(1, "other"), queue=False)
    assert world.endings[5] == ["overloaded"]


def test_a_newer_request_whose_older_one_left_a_full_queue_meanwhile_is_refused() -> None:
    world, engine = full_world("drop_newest")
    newer = world.submit(supersede=(1, "search"))
    world.cancel(2)
    world.end(engine, 1)
    for _ in range(2):
        world.prepare(engine, world.submit().key)
    world.prepare(engine, newer.key)
    assert world.endings[newer.key] == ["overloaded"]
    assert world.endings[3] == [], "who is refused supersedes nothing"


def test_more_bytes_than_the_older_one_leaves_do_not_fit() -> None:
    world = World(bounds=QueueBounds(limit=9, max_bytes=100, overflow="drop_newest"))
    world.submit(size=60)
    world.submit(size=40, supersede=(1, "search"))
    world.submit(size=41, supersede=(1, "search"))
    assert world.endings == {1: [], 2: [], 3: ["overloaded"]}


def test_no_request_is_dropped_for_one_that_does_not_fit_even_then() -> None:
    world = World(bounds=QueueBounds(limit=9, max_bytes=100, overflow="drop_oldest"))
    world.submit(size=90)
    world.submit(size=10, priority="throughput")
    world.submit(size=50, priority="throughput")
    assert world.endings == {1: [], 2: [], 3: ["overloaded"]}


def test_those_that_are_superseded_are_not_dropped_too() -> None:
    world = World(bounds=QueueBounds(limit=9, max_bytes=100, overflow="drop_oldest"))
    world.submit(size=60, supersede=(1, "search"))
    world.submit(size=40)
    world.submit(size=90, supersede=(1, "search"))
    assert world.endings == {1: ["cancelled"], 2: ["overloaded"], 3: []}
    assert [fail.data.get("why") for fail in world.fails] == [None, "dropped oldest"]


def test_a_position_is_reported_while_the_model_loads() -> None:
    world = World()
    for asks in (True, False, True):
        world.submit(progress=asks)
    assert world.positions == {1: [0], 2: [], 3: [2]}
    engine = world.start_engine(sequences=2)
    world.prepare_all(engine)
    assert world.positions == {1: [0], 2: [], 3: [2, 0]}


def test_a_position_is_reported_while_a_full_queue_holds_the_request_back() -> None:
    world = World(bounds=QueueBounds(limit=1))
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    world.submit(progress=True)
    assert world.positions[3] == [1]
    world.end(engine, 1)
    world.prepare_all(engine)
    assert world.positions[3] == [1, 0]


def test_a_position_is_reported_when_it_changes() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    for _ in range(3):
        world.run_one(engine, progress=True)
    assert world.positions == {1: [], 2: [0], 3: [1]}
    world.end(engine, 1)
    assert world.positions == {1: [], 2: [0], 3: [1, 0]}


def test_of_very_many_waiters_each_learns_how_many_there_are_and_its_place_once_it_is_near() -> None:
    world = World(bounds=QueueBounds(limit=200))
    engine = world.start_engine(sequences=1)
    for _ in range(100):
        world.run_one(engine, progress=True)
    assert world.positions[100] == [98]
    for key in range(1, 35):
        world.end(engine, key)
    assert world.positions[100] == [98]
    world.end(engine, 35)
    assert world.positions[100] == [98, 63]
    assert world.positions[50][-1] == 13


def test_no_position_is_reported_without_progress() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    for _ in range(3):
        world.run_one(engine)
    assert world.positions == {1: [], 2: [], 3: []}
