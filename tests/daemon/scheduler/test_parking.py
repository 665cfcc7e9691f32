"""Running throughput work makes room for urgent requests, and resumes afterwards."""

from car_daemon.scheduler.request import State
from tests.daemon.scheduler.fakes import FakeEngine, World, shapes


def busy_world(sequences: int = 1, running: int | None = None) -> tuple[World, FakeEngine]:
    """Return a world whose engine is full of throughput work."""
    world = World()
    engine = world.start_engine(sequences=sequences)
    for _ in range(sequences if running is None else running):
        world.run_one(engine, priority="throughput")
    return world, engine


def world_parked_twice() -> tuple[World, FakeEngine]:
    """Return a world whose one sequence has throughput work that was parked twice for others."""
    world, engine = busy_world()
    for _ in range(2):
        urgent = world.run_one(engine)
        world.set_aside(engine, 1)
        world.end(engine, urgent.key)
    return world, engine


def test_urgent_work_without_a_lease_parks_running_throughput() -> None:
    world, engine = busy_world()
    urgent = world.run_one(engine)
    assert engine.to_park == {1}
    assert urgent.state is State.WAITING
    world.set_aside(engine, 1)
    assert (engine.running, engine.parked) == ({2}, {1})
    assert world.requests[1].state is State.PARKED


def test_a_parked_request_goes_on_when_a_lease_is_free() -> None:
    world, engine = busy_world()
    world.run_one(engine)
    world.set_aside(engine, 1)
    world.end(engine, 2)
    assert (engine.running, engine.parked) == ({1}, set())
    world.end(engine, 1)
    assert world.endings == {1: ["completed"], 2: ["completed"]}


def test_a_parked_request_goes_before_waiting_throughput() -> None:
    world, engine = busy_world()
    world.run_one(engine, priority="throughput")
    world.run_one(engine)
    world.set_aside(engine, 1)
    world.end(engine, 3)
    assert engine.running == {1}


def test_the_one_with_the_least_to_lose_is_parked() -> None:
    world, engine = busy_world(3)
    for key, tokens in ((1, 9), (2, 3), (3, 6)):
        world.advance(key, tokens)
    world.run_one(engine)
    assert engine.to_park == {2}


def test_one_request_is_parked_for_each_that_cannot_wait() -> None:
    world, engine = busy_world(3)
    world.run_one(engine)
    world.run_one(engine)
    assert len(engine.to_park) == 2


def test_nothing_is_parked_where_a_sequence_is_free() -> None:
    world, engine = busy_world(2, running=1)
    world.run_one(engine)
    assert not engine.to_park


def test_throughput_parks_nothing_and_urgent_work_is_never_parked() -> None:
    world, engine = busy_world()
    world.run_one(engine, priority="throughput")
    assert not engine.to_park
    other = World()
    engine = other.start_engine(sequences=1)
    other.run_one(engine)
    other.run_one(engine)
    assert not engine.to_park


def test_work_of_another_model_is_not_parked() -> None:
    world, engine = busy_world()
    full = world.start_engine("other", sequences=0)
    world.run_one(full)
    assert not engine.to_park


def test_a_request_that_was_parked_twice_runs_for_a_second_before_it_is_parked_again() -> None:
    world, engine = world_parked_twice()
    assert world.requests[1].state is State.RUNNING
    world.run_one(engine)
    assert world.scheduler.next_deadline() == world.now + 1
    world.pass_time(0.9)
    assert not engine.to_park
    world.pass_time(0.1)
    assert engine.to_park == {1}
    assert world.scheduler.next_deadline() is None


def test_nothing_is_looked_at_again_for_a_waiter_that_has_left() -> None:
    world, engine = world_parked_twice()
    world.cancel(world.run_one(engine).key)
    assert world.scheduler.next_deadline() is None


def test_a_client_whose_requests_were_parked_often_does_not_keep_all_sequences_from_others() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    for _ in range(2):
        world.run_one(engine, client=ONE)
    for _ in range(8):
        world.pass_time(0.6)
        other = world.run_one(engine, client=OTHER)
        world.pass_time(1.0)
        for key in list(engine.to_park):
            world.set_aside(engine, key)
        assert other.state is State.RUNNING
        world.end(engine, other.key)
    assert engine.running == {1, 2}


def test_a_request_that_ends_before_it_is_set_aside_gives_up_its_lease() -> None:
    world, engine = busy_world()
    world.run_one(engine)
    world.end(engine, 1)
    assert world.endings[1] == ["completed"]
    assert engine.running == {2}


def test_a_request_that_is_cancelled_before_it_is_set_aside_is_gone() -> None:
    world, engine = busy_world()
    world.run_one(engine)
    world.cancel(1)
    world.set_aside(engine, 1)
    assert engine.running == {2}
    world.end(engine, 1)
    assert world.endings[1] == ["cancelled"]
    assert world.gate.in_use == 1


def test_a_parked_request_whose_deadline_passes_gives_what_it_has() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine, priority="throughput", timeout=5.0)
    world.advance(1)
    world.run_one(engine)
    world.set_aside(engine, 1)
    world.now = 5.0
    actions = world.scheduler.expire(5.0)
    assert shapes(actions) == [("halt at deadline", 1, engine.number)]
    world.do(actions)
    world.end(engine, 1)
    assert world.endings[1] == ["completed"]
    assert engine.running == {2}


def test_a_parked_request_runs_again_when_its_engine_dies() -> None:
    world, engine = busy_world()
    world.run_one(engine)
    world.advance(2, streams=True)
    world.set_aside(engine, 1)
    world.lose_engine(engine)
    assert world.endings == {1: [], 2: []} or world.endings[2] == ["engine_lost"]
    assert world.requests[1].state is State.ACCEPTED
    following = world.start_engine(sequences=2)
    world.prepare_all(following)
    assert 1 in following.running


def test_a_parked_stream_of_which_something_was_sent_is_lost_with_its_engine() -> None:
    world, engine = busy_world()
    world.advance(1, streams=True)
    world.run_one(engine)
    world.set_aside(engine, 1)
    world.lose_engine(engine)
    assert world.endings[1] == ["engine_lost"]


ONE, OTHER = (0, "one"), (0, "other")


def test_a_client_with_several_leases_yields_one_to_a_client_with_none() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    for client in (ONE, ONE, OTHER):
        world.run_one(engine, client=client)
    assert len(engine.to_park) == 1
    (yielded_to_peer,) = engine.to_park
    world.set_aside(engine, yielded_to_peer)
    assert 3 in engine.running
    assert world.requests[yielded_to_peer].parking.to_peer


def test_a_client_with_one_lease_yields_nothing() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    for client in (ONE, OTHER, (0, "third")):
        world.run_one(engine, client=client)
    assert not engine.to_park


def test_a_client_that_holds_a_lease_gets_no_second_by_parking() -> None:
    world = World()
    engine = world.start_engine(sequences=3)
    for client in (ONE, ONE, OTHER, OTHER):
        world.run_one(engine, client=client)
    assert not engine.to_park


def test_a_lease_that_is_given_up_for_a_newer_request_goes_to_the_oldest_of_its_client() -> None:
    world = World()
    engine = world.start_engine(sequences=3)
    for client in (ONE, ONE, ONE, ONE, OTHER):
        world.run_one(engine, client=client)
    (first,) = engine.to_park
    world.set_aside(engine, first)
    assert 5 in engine.running
    # It waits while its client has a lease, and the sequence that is free then goes to the client with less service.
    world.run_one(engine, client=OTHER)
    world.advance(5, 100)
    world.end(engine, 5)
    assert 6 not in engine.running
    world.run_one(engine, client=OTHER)
    (second,) = engine.to_park
    world.set_aside(engine, second)
    assert 6 in engine.running
    assert 7 not in engine.running


def test_a_request_that_yielded_waits_for_its_turn_by_fairness() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    for client in (ONE, ONE, OTHER, OTHER):
        world.run_one(engine, client=client)
    (yielded_to_peer,) = engine.to_park
    world.advance(yielded_to_peer, 500)
    world.set_aside(engine, yielded_to_peer)
    assert 3 in engine.running
    world.end(engine, 3)
    assert 4 in engine.running


def test_under_the_machine_limit_urgent_work_of_one_model_parks_throughput_of_another() -> None:
    world = World(machine_limit=2)
    one, two = world.start_engine("one", sequences=4), world.start_engine("two", sequences=4)
    for tokens in (5, 3):
        world.advance(world.run_one(one, priority="throughput").key, tokens)
    world.run_one(two)
    assert one.to_park == {2}
    # Another one is parked for the next waiter, none for this one again.
    world.run_one(two)
    assert one.to_park == {1, 2}
    world.set_aside(one, 2)
    assert two.running == {3}
    world.set_aside(one, 1)
    assert two.running == {3, 4}
    world.end(two, 3)
    assert (len(one.running), len(one.parked)) == (1, 1)


def test_a_model_whose_own_sequences_are_taken_is_helped_by_no_other_models_parking() -> None:
    world = World(machine_limit=2)
    one, two = world.start_engine("one", sequences=1), world.start_engine("two", sequences=1)
    world.run_one(one, priority="throughput")
    world.run_one(two)
    world.run_one(two)
    assert one.to_park == set()


def test_a_client_without_a_lease_has_its_turn_whatever_model_another_ones_leases_are_of() -> None:
    world = World(machine_limit=2)
    one, two = world.start_engine("one", sequences=4), world.start_engine("two", sequences=4)
    for _ in range(2):
        world.run_one(one, client=(0, "has several"))
    world.run_one(two, client=(0, "has none"))
    assert len(one.to_park) == 1


def test_a_limit_that_was_lowered_below_what_runs_has_nothing_parked_in_vain() -> None:
    world = World(machine_limit=3)
    one, two = world.start_engine("one", sequences=4), world.start_engine("two", sequences=4)
    for _ in range(3):
        world.run_one(one, priority="throughput")
    world.gate.machine_limit = 1
    world.run_one(two)
    assert one.to_park == set()


def test_work_that_ran_for_long_has_not_waited_for_long() -> None:
    world, engine = busy_world()
    world.pass_time(31)
    world.run_one(engine)
    world.set_aside(engine, 1)
    assert (engine.running, engine.parked, engine.to_park) == ({2}, {1}, set())
    # From its parking on it waits: so long that it is as urgent as any, and first of those.
    world.run_one(engine)
    world.pass_time(30)
    world.end(engine, 2)
    assert engine.running == {1}


def test_no_more_are_parked_for_another_model_than_it_has_sequences_free() -> None:
    world = World(machine_limit=8)
    one, two = world.start_engine("one", sequences=8), world.start_engine("two", sequences=1)
    for _ in range(8):
        world.run_one(one, priority="throughput")
    for _ in range(3):
        world.run_one(two)
    assert len(one.to_park) == 1
    world.set_aside(one, min(one.to_park))
    assert (len(two.running), one.to_park) == (1, set())


def test_a_sequence_of_the_waiters_own_model_is_left_to_it_and_a_free_one_to_the_next() -> None:
    world = World(machine_limit=3)
    one, two = world.start_engine("one", sequences=2), world.start_engine("two", sequences=2)
    for engine in (one, one, two):
        world.run_one(engine, priority="throughput")
    for _ in range(2):
        world.run_one(two)
    assert len(one.to_park | two.to_park) == 2
    for engine in (one, two):
        for key in sorted(engine.to_park):
            world.set_aside(engine, key)
    assert two.running >= {4, 5}


def test_what_memory_pressure_leaves_of_a_model_is_all_that_others_make_room_for() -> None:
    world = World(machine_limit=3)
    one, two = world.start_engine("one", sequences=2), world.start_engine("two", sequences=2)
    for engine in (one, one, two):
        world.run_one(engine, priority="throughput" if engine is one else "latency_critical")
    world.gate.pressure = "critical"
    world.run_one(two)
    assert one.to_park == set(), "its one sequence is leased, and the other one is not to be"


def test_of_a_clients_leases_one_more_than_the_others_have_is_left_whenever_parkings_are_reported() -> None:
    world = World()
    engine = world.start_engine(sequences=4)
    for _ in range(4):
        world.run_one(engine, client=(0, "first"))
    for _ in range(4):
        world.run_one(engine, client=(0, "second"))
    assert len(engine.to_park) == 1


def test_waiters_for_different_devices_of_one_model_are_helped_together() -> None:
    world = World(machine_limit=2)
    one, _, _ = world.start_engine("one"), world.start_engine("two", 1, "cpu"), world.start_engine("two", 1, "gpu0")
    for _ in range(2):
        world.run_one(one, priority="throughput")
    for device in ("cpu", "gpu0"):
        key = world.submit("two", device=device).key
        world.prepare(next(engine for engine in world.engines.values() if key in engine.preparing), key)
    assert one.to_park == {1, 2}
