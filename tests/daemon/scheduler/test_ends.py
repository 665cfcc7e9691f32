"""Cancelling in every state, deadlines, and the death of engines."""

import pytest

from car_daemon.scheduler.request import State
from tests.daemon.scheduler.fakes import World, shapes


def world_with_request_in(state: State, *, timeout: float | None = None) -> World:
    """Return a world whose request 1 is in a state, with nothing else in it."""
    world = World()
    if state is State.ACCEPTED:
        world.submit(timeout=timeout)
        return world
    engine = world.start_engine(sequences=0 if state is State.WAITING else 1)
    world.submit(priority="throughput", timeout=timeout)
    if state is not State.PREPARING:
        world.prepare(engine, 1)
    if state is State.PARKED:
        world.gate.machine_limit = 0
        engine.park(1)
        world.set_aside(engine, 1)
    assert world.requests[1].state is state
    return world


STATES = [State.ACCEPTED, State.PREPARING, State.WAITING, State.RUNNING, State.PARKED]


@pytest.mark.parametrize("state", STATES)
def test_a_request_can_be_cancelled_in_every_state(state: State) -> None:
    world = world_with_request_in(state)
    world.cancel(1)
    assert world.endings[1] == ["cancelled"]
    assert world.requests[1].state is State.ENDED
    assert not world.scheduler.requests
    assert len(world.scheduler.waiting.requests) == 0
    assert world.scheduler.totals.cancelled == 1


def test_a_cancelled_request_that_was_parked_is_forgotten_by_its_engine() -> None:
    world = world_with_request_in(State.PARKED)
    world.cancel(1)
    assert world.engines[1].halted == {1}
    world.end(world.engines[1], 1)
    assert world.endings[1] == ["cancelled"]
    assert world.gate.in_use == 0


@pytest.mark.parametrize("state", STATES)
def test_a_second_cancel_does_nothing(state: State) -> None:
    world = world_with_request_in(state)
    world.cancel(1)
    assert world.scheduler.cancel(1, 0.0) == []


def test_a_cancelled_request_keeps_its_lease_until_its_engine_let_go_of_it() -> None:
    world = world_with_request_in(State.RUNNING)
    engine = world.engines[1]
    world.cancel(1)
    assert engine.halted == {1}
    assert world.gate.in_use == 1
    world.end(engine, 1)
    assert world.gate.in_use == 0
    assert world.endings[1] == ["cancelled"]


def test_a_cancelled_requests_sequence_goes_to_the_next() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    world.cancel(1)
    world.end(engine, 1)
    assert engine.running == {2}


def test_what_an_engine_prepared_for_a_cancelled_request_is_dropped() -> None:
    world = world_with_request_in(State.PREPARING)
    world.cancel(1)
    world.prepare(world.engines[1], 1)
    assert not world.engines[1].running
    assert world.endings[1] == ["cancelled"]


def test_tokens_of_a_cancelled_request_are_not_counted() -> None:
    world = world_with_request_in(State.RUNNING)
    world.cancel(1)
    world.advance(1, 3)
    assert world.requests[1].produced == 0


@pytest.mark.parametrize("state", STATES)
def test_a_deadline_before_the_first_token_is_an_error_in_every_state(state: State) -> None:
    world = world_with_request_in(state, timeout=5.0)
    world.pass_time(4.9)
    assert world.endings[1] == []
    world.pass_time(0.1)
    assert world.endings[1] == ["deadline_exceeded"]
    assert world.scheduler.totals.failed == 1


def test_a_deadline_after_the_first_token_ends_the_request_with_what_it_has() -> None:
    world = World()
    engine = world.start_engine()
    world.run_one(engine, timeout=5.0)
    world.advance(1)
    world.now = 5.0
    assert shapes(world.scheduler.expire(5.0)) == [("halt at deadline", 1, engine.number)]
    assert world.scheduler.expire(5.9) == []
    world.end(engine, 1)
    assert world.endings[1] == ["completed"]


def test_an_engine_that_does_not_end_a_request_at_its_deadline_is_not_waited_for() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine, timeout=5.0)
    world.run_one(engine)
    world.advance(1)
    world.pass_time(5.0)
    assert (world.endings[1], world.scheduler.next_deadline()) == ([], 6.0)
    world.pass_time(1.0)
    assert (world.endings[1], world.gate.in_use, engine.running) == (["completed"], 1, {1})
    world.end(engine, 1)
    assert (world.endings[1], engine.running) == (["completed"], {2})


def test_a_queue_timeout_ends_only_what_waits() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine, queue_timeout=5.0)
    world.run_one(engine, queue_timeout=5.0)
    world.pass_time(10.0)
    assert world.endings == {1: [], 2: ["deadline_exceeded"]}


def test_the_next_deadline_is_the_earliest_that_applies() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    assert world.scheduler.next_deadline() is None
    world.run_one(engine, timeout=9.0, queue_timeout=1.0)
    world.run_one(engine, timeout=7.0)
    assert world.scheduler.next_deadline() == 7.0
    world.submit(queue_timeout=2.0)
    assert world.scheduler.next_deadline() == 2.0


def test_a_request_whose_engine_died_before_anything_was_sent_runs_again() -> None:
    world = World()
    engine = world.start_engine()
    world.run_one(engine)
    world.advance(1, 3)
    world.lose_engine(engine)
    assert world.requests[1].state is State.ACCEPTED
    assert (world.requests[1].produced, world.gate.in_use) == (0, 0)
    following = world.start_engine()
    world.prepare_all(following)
    assert following.running == {1}
    assert world.endings[1] == []


def test_a_request_that_was_running_in_two_engine_deaths_is_quarantined() -> None:
    world = World()
    for _ in range(2):
        engine = world.start_engine()
        if not world.requests:
            world.submit()
        world.prepare_all(engine)
        world.lose_engine(engine)
    assert world.endings[1] == ["engine_lost"]
    assert world.fails[0].data == {"quarantined": True, "retryable": False}


def test_a_prompt_whose_preparing_met_two_engine_deaths_is_quarantined() -> None:
    world = World()
    engine = world.start_engine()
    world.submit()
    world.lose_engine(engine)
    assert (world.endings[1], world.requests[1].state) == ([], State.ACCEPTED)
    engine = world.start_engine()
    assert engine.preparing == {1}
    world.lose_engine(engine)
    assert (world.endings[1], world.fails[0].data["quarantined"]) == (["engine_lost"], True)


def test_requests_behind_the_one_at_which_two_engines_hung_are_prepared_by_a_third() -> None:
    world = World()
    engine = world.start_engine()
    bad, good = 1, 2
    world.submit()
    world.submit()
    for _ in range(2):
        assert engine.preparing == {bad, good}
        world.lose_engine(engine, bad)
        engine = world.start_engine()
    assert (world.endings[bad], world.endings[good], engine.preparing) == (["engine_lost"], [], {good})
    world.lose_engine(engine)
    assert world.start_engine().preparing == {good}


def test_a_stream_of_which_something_was_sent_is_lost_with_its_engine() -> None:
    world = World()
    engine = world.start_engine()
    world.run_one(engine)
    world.advance(1, streams=True)
    world.lose_engine(engine)
    assert world.endings[1] == ["engine_lost"]
    assert world.fails[0].data == {}
    assert world.scheduler.totals.failed == 1


def test_an_engines_death_costs_waiting_requests_nothing() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    world.submit()
    world.lose_engine(engine)
    assert {request.state for request in world.requests.values()} == {State.ACCEPTED}
    following = world.start_engine(sequences=2)
    world.prepare_all(following)
    assert following.running == {1, 2}
    assert world.requests[3].state is State.WAITING


def test_what_was_prepared_once_is_not_blamed_for_deaths_while_it_is_prepared_anew() -> None:
    world = World()
    engine = world.start_engine(sequences=0)
    world.run_one(engine)
    for _ in range(5):
        world.lose_engine(engine)
        engine = world.start_engine()
        assert engine.preparing == {1}
    world.prepare_all(engine)
    assert engine.running == {1}


def test_what_refused_to_wait_and_ran_is_not_refused_when_it_runs_again() -> None:
    world = World()
    engine = world.start_engine(sequences=2)
    world.run_one(engine)
    impatient = world.submit(wait=False)
    world.prepare_all(engine)
    world.lose_engine(engine)
    following = world.start_engine(sequences=1)
    world.prepare_all(following)
    assert (following.running, impatient.state, world.endings[impatient.key]) == ({1}, State.WAITING, [])


def test_an_engine_that_cannot_run_what_another_one_prepared_says_so() -> None:
    world = World()
    engine = world.start_engine(sequences=0)
    world.run_one(engine)
    world.lose_engine(engine)
    shorter = world.start_engine()
    world.refuse(shorter, 1)
    assert (world.endings[1], shorter.running) == (["context_exceeded"], set())


def test_a_cancelled_request_needs_nothing_from_an_engine_that_died() -> None:
    world = world_with_request_in(State.RUNNING)
    world.cancel(1)
    world.lose_engine(world.engines[1])
    assert world.endings[1] == ["cancelled"]
    assert world.gate.in_use == 0
    assert world.start_engine().running == set()


def test_the_death_of_one_engine_leaves_the_others_alone() -> None:
    world = World()
    first, second = world.start_engine("a"), world.start_engine("b")
    world.run_one(first)
    world.run_one(second)
    world.lose_engine(first)
    assert second.running == {2}
    assert world.requests[2].state is State.RUNNING


def test_the_death_of_an_engine_frees_its_part_of_the_machine_limit() -> None:
    world = World(machine_limit=1)
    first, second = world.start_engine("a"), world.start_engine("b")
    world.run_one(first)
    world.run_one(second)
    assert shapes(world.scheduler.engine_lost(first.number, 0.0)) == [("run", 2, second.number)]


def test_a_request_that_runs_again_does_not_fall_to_its_queue_timeout() -> None:
    world = World()
    engine = world.start_engine()
    world.run_one(engine, queue_timeout=1.0)
    world.pass_time(5.0)
    world.lose_engine(engine)
    world.pass_time(0.0)
    assert world.endings[1] == []
    following = world.start_engine()
    world.prepare_all(following)
    assert following.running == {1}


def test_a_request_past_its_deadline_is_answered_with_what_it_has_when_its_engine_dies() -> None:
    world = World()
    engine = world.start_engine()
    world.run_one(engine, timeout=5.0)
    world.advance(1)
    world.pass_time(5.0)
    assert world.endings[1] == []
    world.lose_engine(engine)
    assert world.endings[1] == ["completed"]
    assert world.start_engine().running == set()
