"""The trace of decisions: every one has its verb, its request and its reason."""

import pytest

from car_daemon.scheduler.backlog import Overflow, QueueBounds
from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.request import Decisions, Request, RequestSpec
from car_daemon.scheduler.scheduler import Scheduler
from tests.daemon.scheduler.fakes import World


def why(world: World, verb: str, key: int) -> str:
    """Return the reason of the one decision of a kind about a request."""
    (reason,) = (why for decided, about, why in world.decisions if (decided, about) == (verb, key))
    return reason


def verbs(world: World, key: int) -> list[str]:
    return [verb for verb, about, _ in world.decisions if about == key]


def full_world(overflow: Overflow) -> World:
    """Return a world of one sequence whose queue has room for one request that waits."""
    world = World(bounds=QueueBounds(limit=1, overflow=overflow))
    engine = world.start_engine(sequences=1)
    for _ in range(2):
        world.run_one(engine)
    return world


def test_a_lone_request_is_prepared_and_leased() -> None:
    world = World()
    engine = world.start_engine()
    world.end(engine, world.run_one(engine).key)
    assert verbs(world, 1) == ["prepare", "lease"]
    assert why(world, "lease", 1) == "waited 0.000 s, 0 still wait"


def test_a_parking_names_the_request_it_is_for_and_the_resumption_follows() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine, priority="throughput")
    world.run_one(engine)
    world.set_aside(engine, 1)
    world.end(engine, 2)
    assert verbs(world, 1) == ["prepare", "lease", "park", "resume"]
    assert why(world, "park", 1) == "for request 2: a higher class"


def test_a_client_with_several_leases_gives_one_up_for_its_peer() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    for client in ((0, "busy"), (0, "busy"), (0, "other")):
        world.run_one(engine, client=client)
    world.pass_step()
    assert why(world, "park", 2) == "for request 3: its turn is over"


def test_a_pause_is_a_parking_with_a_reason_of_its_own() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.pause(1)
    assert why(world, "park", 1) == "paused: its client does not read"


def test_work_that_aged_is_leased_as_such() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine, priority="throughput")
    world.pass_time(31)
    world.end(engine, 1)
    assert why(world, "lease", 2) == "aged, waited 31.000 s, 0 still wait"


@pytest.mark.parametrize(
    ("overflow", "verb", "reason"),
    [("drop_newest", "refuse", "queue full"), ("block", "hold_back", "queue full: 1 requests")],
)
def test_a_full_queue_says_what_it_does_with_a_newcomer(overflow: Overflow, verb: str, reason: str) -> None:
    world = full_world(overflow)
    world.submit()
    assert why(world, verb, 3) == reason


def test_a_request_that_was_held_back_is_let_in() -> None:
    world = full_world("block")
    world.submit()
    (engine,) = world.engines.values()
    world.end(engine, 1)
    assert why(world, "let_in", 3) == "0 are still held back"


def test_a_dropped_request_names_the_one_that_takes_its_place() -> None:
    world = full_world("drop_oldest")
    (engine,) = world.engines.values()
    world.prepare(engine, world.submit().key)
    assert why(world, "drop", 2) == "queue full: dropped oldest, for request 3"


def test_a_superseded_request_names_its_successor() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    for _ in range(2):
        world.prepare(engine, world.submit(supersede=(1, "search")).key)
    assert why(world, "supersede", 1) == "by request 2"


def test_a_refusal_says_why() -> None:
    world = World()
    world.submit(wait=False)
    world.scheduler.drain()
    world.submit()
    assert (why(world, "refuse", 1), why(world, "refuse", 2)) == ("no free sequence", "draining")


def test_a_choice_of_replicas_says_which_and_why() -> None:
    world = World()
    for _ in range(2):
        world.start_engine(sequences=3)
    for session in (None, (0, "s"), (0, "s")):
        request = world.submit(session=session)
        engine = world.engine_with(request.key)
        assert engine is not None
        world.prepare(engine, request.key, blocks=(7,))
    reasons = [why(world, "route", key) for key in (1, 2, 3)]
    assert reasons == [
        "engine 1: the fastest of those with a free sequence",
        "engine 1: it has most of the prompt",
        "engine 1: it ran the session",
    ]


def test_the_death_of_an_engine_says_of_each_request_what_becomes_of_it() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    for _ in range(2):
        world.run_one(engine)
    world.advance(1, streams=True)
    world.lose_engine(engine)
    assert why(world, "lose", 1) == "part of its answer was sent"
    assert why(world, "retry", 2) == "its engine died before any of its answer was sent"


def test_an_expiry_says_how_far_the_request_was() -> None:
    world = World()
    world.submit(timeout=2.0)
    world.pass_time(2.5)
    assert why(world, "expire", 1) == "0 tokens after 2.500 s, limit 2.0 s"


def test_no_reason_shows_what_a_client_chose() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    for _ in range(2):
        request = world.submit(client=(0, "canary"), supersede=(1, "canary"), session=(0, "canary"))
        world.prepare(engine, request.key)
    assert world.decisions
    assert not any("canary" in reason for _, _, reason in world.decisions)


def test_a_trace_is_switched_on_and_off_while_the_scheduler_works() -> None:
    seen: list[int] = []
    decisions = Decisions()
    scheduler = Scheduler(Gate(decisions=decisions), decisions=decisions)
    for key, on in ((1, False), (2, True), (3, False)):
        decisions.sink = (lambda _verb, request, _why: seen.append(request.key)) if on else None
        scheduler.submit(Request(RequestSpec(key=key, model="m", arrived=0.0, wait=False)), 0.0)
    assert seen == [2]
