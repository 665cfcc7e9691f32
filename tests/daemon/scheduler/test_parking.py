"""Running throughput work makes room for urgent requests, and resumes afterwards."""

import pytest

from car_daemon.scheduler.account import TURN
from car_daemon.scheduler.request import Request, State
from tests.daemon.scheduler.fakes import FakeEngine, World, shapes


def busy_world(sequences: int = 1, running: int | None = None) -> tuple[World, FakeEngine]:
    """Return a world whose engine is full of throughput work."""
    world = World()
    engine = world.start_engine(sequences=sequences)
    for _ in range(sequences if running is None else running):
        world.run_one(engine, priority="throughput")
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


def test_of_a_lower_class_the_youngest_lease_is_parked() -> None:
    world, engine = busy_world(3)
    world.run_one(engine)
    assert engine.to_park == {3}


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
    assert not engine.to_park, "no lease is over before a step"
    world.pass_step()
    assert engine.to_park == {2}, "the youngest"
    world.set_aside(engine, 2)
    assert engine.running == {1, 3}


def test_a_client_that_holds_a_lease_gets_no_second_by_parking() -> None:
    world = World()
    engine = world.start_engine(sequences=3)
    for client in (ONE, ONE, OTHER, OTHER):
        world.run_one(engine, client=client)
    assert not engine.to_park


def test_a_request_that_yielded_waits_for_its_turn_by_fairness() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    for client in (ONE, ONE, OTHER, OTHER):
        world.run_one(engine, client=client)
    world.pass_step()
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
    world.pass_step()
    assert len(one.to_park) == 1


@pytest.mark.parametrize("runs", [True, False])
def test_what_a_client_has_of_one_model_takes_no_turn_of_another_model_from_it(runs: bool) -> None:
    world = World()
    small, large = world.start_engine("small", sequences=1), world.start_engine("large", sequences=1)
    running = world.run_one(large, client=(2, ""))
    world.advance(running.key, TURN)
    own = world.run_one(small, client=(1, ""))
    world.advance(own.key, 50 * TURN)
    if not runs:
        world.end(small, own.key)
    world.run_one(large, client=(1, ""))
    world.pass_step()
    assert large.to_park == {running.key}


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
    world.pass_step()
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


def labels(world: World, engine: FakeEngine, count: int) -> list[Request]:
    """Let so many labels send a request each."""
    return [world.run_one(engine, client=(0, f"label {number}")) for number in range(count)]


def test_an_answer_of_64_tokens_is_not_interrupted_for_a_label_without_a_lease() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    labels(world, engine, 2)
    for _ in range(TURN - 1):
        world.advance(1)
        world.pass_step()
        assert not engine.to_park
    world.advance(1)
    world.pass_step()
    assert engine.to_park == {1}


def test_a_prompt_without_a_token_gives_way_only_if_no_answer_has_had_its_turn() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    labels(world, engine, 2)
    world.advance(1, TURN)
    first = world.run_one(engine, client=(0, "first"))
    world.pass_step()
    assert engine.to_park == {1}
    world.set_aside(engine, 1)
    world.run_one(engine, client=(0, "second"))
    world.advance(first.key)
    world.pass_step()
    assert engine.to_park == {2}


def test_labels_that_come_together_have_their_turns_one_after_the_other() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    (running,) = labels(world, engine, 1)
    world.advance(running.key, TURN)
    newcomers = [world.run_one(engine, client=(0, name)) for name in ("b", "c", "d")]
    for _ in newcomers:
        world.pass_step()
        (victim,) = engine.to_park
        world.set_aside(engine, victim)
        (now,) = engine.running
        world.advance(now, TURN)
    assert {each.key for each in newcomers} == world.requests.keys() - {running.key}
    assert all(each.produced == TURN for each in newcomers)


@pytest.mark.parametrize("other", ["class", "model"])
def test_a_label_that_can_take_nothing_keeps_no_other_label_of_its_tenant_from_its_turn(other: str) -> None:
    world = World()
    engine, full = world.start_engine(sequences=2), world.start_engine("other", sequences=0)
    labels(world, engine, 2)
    if other == "class":
        world.run_one(engine, client=(0, "summarizer"), priority="throughput")
    else:
        world.run_one(full, client=(0, "summarizer"))
    person = world.run_one(engine, client=(0, "person"))
    assert not engine.to_park, "no lease is over before its turn"
    for key in sorted(engine.running):
        world.advance(key, TURN)
    world.pass_step()
    (victim,) = engine.to_park
    world.set_aside(engine, victim)
    assert person.key in engine.running


def test_the_sequence_goes_to_the_request_that_it_was_freed_for() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    (first,) = labels(world, engine, 1)
    world.advance(first.key, TURN)
    world.pass_step()
    waiter = world.run_one(engine, client=(0, "waiter"))
    (victim,) = engine.to_park
    world.run_one(engine, client=(1, "of another user"))
    world.set_aside(engine, victim)
    assert engine.running == {waiter.key}


def test_the_sequence_of_a_request_that_is_cancelled_while_it_is_parked_goes_to_its_waiter() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    (victim,) = labels(world, engine, 1)
    world.advance(victim.key, TURN)
    world.pass_step()
    waiter = world.run_one(engine, client=(0, "waiter"))
    assert engine.to_park == {victim.key}
    world.run_one(engine, client=(1, "of another user"))
    world.advance(victim.key, TURN)
    world.cancel(victim.key)
    world.end(engine, victim.key)
    assert engine.running == {waiter.key}


def test_what_was_set_aside_runs_for_as_long_before_it_gives_way_again() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    (long,) = labels(world, engine, 1)
    world.advance(long.key, TURN)
    world.pass_step()
    other = world.run_one(engine, client=(0, "other"))
    world.set_aside(engine, long.key)
    world.pass_time(5.0)
    world.end(engine, other.key)
    assert engine.running == {long.key}
    world.run_one(engine, client=(0, "third"))
    world.pass_time(4.9)
    assert not engine.to_park
    world.pass_time(0.2)
    assert engine.to_park == {long.key}


def test_a_deep_answer_keeps_its_lease_until_its_cells_are_worth_a_move() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    (deep,) = labels(world, engine, 1)
    world.scheduler.advanced(deep.key, 12_000, TURN)
    world.run_one(engine, client=(0, "other"))
    world.pass_time(0.7)
    assert not engine.to_park
    world.pass_time(0.2)
    assert engine.to_park == {deep.key}


def test_a_parked_request_takes_no_lease_from_another() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    (long,) = labels(world, engine, 1)
    world.advance(long.key, TURN)
    world.pass_step()
    other = world.run_one(engine, client=(0, "other"))
    world.set_aside(engine, long.key)
    world.advance(other.key, 10 * TURN)
    for _ in range(100):
        world.pass_step()
    assert engine.running == {other.key}
    assert not engine.to_park


def test_a_waiter_that_has_left_is_parked_for_once_and_the_tree_has_the_sequence() -> None:
    world, engine = busy_world()
    waiter = world.run_one(engine)
    world.cancel(waiter.key)
    world.set_aside(engine, 1)
    assert engine.running == {1}
    assert world.scheduler.next_deadline() is None


def test_throughput_work_whose_leases_are_all_short_becomes_as_urgent_as_any() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    long = world.run_one(engine, priority="throughput")
    for _ in range(30):
        urgent = world.run_one(engine)
        world.set_aside(engine, long.key)
        world.pass_time(1.0)
        world.end(engine, urgent.key)
        assert engine.running == {long.key}
    world.run_one(engine)
    assert not engine.to_park


def test_who_took_a_turn_before_its_engine_died_takes_one_again() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    agents = [world.run_one(engine, client=(0, name)) for name in ("agent a", "agent b")]
    for agent in agents:
        world.advance(agent.key, TURN)
    world.now += 0.2
    person = world.run_one(engine, client=(0, "person"))
    (parked,) = engine.to_park
    world.set_aside(engine, parked)
    assert person.key in engine.running
    world.lose_engine(engine)
    engine = world.start_engine(sequences=2)
    world.prepare_all(engine)
    home = world.run_one(engine, client=(0, "home"))
    waiting = {person.key, home.key}
    for _ in range(3 * TURN):
        world.now += 0.2
        for key in sorted(engine.running):
            world.advance(key)
        world.do(world.scheduler.expire(world.now))
        for key in sorted(engine.to_park):
            world.set_aside(engine, key)
        for key in sorted(waiting & engine.running):
            waiting.remove(key)
            world.end(engine, key)
    assert not waiting
