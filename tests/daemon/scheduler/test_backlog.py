"""The bounded queue: requests that count, that are held back and that are dropped."""

import pytest

from car_daemon.scheduler.backlog import Backlog, Overflow, QueueBounds
from car_daemon.scheduler.order import Charging
from car_daemon.scheduler.request import State
from tests.daemon.scheduler.fakes import World


def world_with(overflow: Overflow, limit: int = 2, max_bytes: int = 100) -> World:
    return World(bounds=QueueBounds(limit, max_bytes, overflow))


def why(world: World) -> list[tuple[int, object]]:
    """Return the requests that were refused or dropped, with the reasons."""
    return [(fail.request.key, fail.data.get("why")) for fail in world.fails]


def test_an_empty_queue_takes_a_request_of_any_size() -> None:
    world = world_with("drop_newest")
    world.submit(size=1000)
    assert world.endings[1] == []


def test_running_work_does_not_count() -> None:
    world = world_with("drop_newest", limit=1)
    engine = world.start_engine(sequences=2)
    for _ in range(2):
        world.run_one(engine)
    assert len(world.scheduler.backlog) == 0
    world.submit()
    assert len(world.scheduler.backlog) == 1


@pytest.mark.parametrize("overflow", ["block", "drop_newest", "drop_oldest"])
def test_running_and_parked_work_of_a_dead_engine_keeps_no_newcomer_of_another_model_out(overflow: Overflow) -> None:
    world = world_with(overflow, limit=1)
    engine, free = world.start_engine(sequences=2), world.start_engine("free", 1)
    for _ in range(2):
        world.run_one(engine, priority="throughput")
    for label in ("a", "b"):
        world.run_one(engine, client=(0, label))
        world.set_aside(engine, min(engine.to_park))
    assert (engine.running, engine.parked) == ({3, 4}, {1, 2})
    world.lose_engine(engine)
    assert world.run_one(free, client=(0, "c")).state is State.RUNNING
    again = world.start_engine(sequences=4)
    world.prepare_all(again)
    assert again.running == {1, 2, 3, 4}
    assert not why(world)


def test_requests_that_wait_for_a_load_count() -> None:
    world = world_with("drop_newest")
    for _ in range(3):
        world.submit()
    assert why(world) == [(3, "queue full")]


def test_bytes_count_as_well() -> None:
    world = world_with("drop_newest", limit=10)
    world.submit(size=60)
    world.submit(size=50)
    world.submit(size=40)
    assert why(world) == [(2, "queue full")]


def test_a_refusal_names_the_policy_and_both_numbers() -> None:
    world = world_with("drop_newest", limit=1)
    world.submit()
    world.submit()
    queue = {"policy": "drop_newest", "queued": 1, "queue_limit": 1, "user_queued": 1, "user_share": 1}
    assert world.fails[0].data == {"why": "queue full", **queue}


def test_after_a_first_lease_ended_a_refusal_names_the_time_to_retry_after() -> None:
    world = world_with("drop_newest", limit=1)
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.now = 2.0
    world.end(engine, 1)
    world.run_one(engine)
    world.submit()
    world.submit()
    assert world.fails[0].data["retry_after_ms"] == 4000


def test_a_full_queue_blocks_by_holding_requests_back_in_order() -> None:
    world = world_with("block")
    engine = world.start_engine(sequences=1)
    for _ in range(3):
        world.run_one(engine)
    held = [world.submit() for _ in range(2)]
    assert [request.state for request in held] == [State.ACCEPTED] * 2
    assert (len(world.scheduler.backlog), len(world.scheduler.backlog.held_back)) == (2, 2)
    world.end(engine, 1)
    assert engine.preparing == {4}
    assert (len(world.scheduler.backlog), len(world.scheduler.backlog.held_back)) == (2, 1)


def test_a_request_that_does_not_want_to_be_held_back_is_refused() -> None:
    world = world_with("block", limit=1)
    world.submit()
    world.submit(queue=False)
    assert why(world) == [(2, "queue full")]


MIB = 1024 * 1024


def test_what_is_held_back_is_bounded_in_bytes_and_the_process_that_has_most_is_refused() -> None:
    world = world_with("block", limit=1)
    world.submit()
    world.submit(process=1, size=16 * MIB)
    for number in range(40):
        world.submit(process=2, client=(1, f"label {number}"), size=8 * MIB)
    modest = world.submit(process=3, size=16 * MIB)
    assert why(world) == [(key, "queue full") for key in [*range(33, 43), 32, 31]]
    assert len(world.scheduler.backlog.held_back) == 30
    assert not world.endings[modest.key]


def test_bytes_are_what_counts_of_those_held_back_and_many_may_have_to_make_room() -> None:
    world = world_with("block", limit=1)
    world.submit()
    for _ in range(2000):
        world.submit(process=1, size=1000)
    for _ in range(32):
        world.submit(process=2, size=8 * MIB - 1000)
    world.submit(process=2, size=8 * MIB)
    assert {fail.request.spec.process for fail in world.fails} == {2}
    held = len(world.scheduler.backlog.held_back)
    world.submit(process=3, size=249 * MIB)
    assert {fail.request.spec.process for fail in world.fails} == {2, 3}
    assert len(world.scheduler.backlog.held_back) == held


def test_what_was_held_back_and_is_not_any_more_leaves_room() -> None:
    world = world_with("block", limit=1)
    world.submit()
    held = [world.submit(size=8 * MIB) for _ in range(32)]
    world.cancel(held[5].key)
    world.submit(size=8 * MIB)
    world.cancel(1)
    world.submit(size=8 * MIB)
    assert [fail.reason for fail in world.fails] == ["cancelled"] * 2
    world.submit(size=8 * MIB)
    assert world.endings[36] == ["overloaded"]


def test_a_held_request_can_be_cancelled() -> None:
    world = world_with("block", limit=1)
    for _ in range(3):
        world.submit()
    world.cancel(2)
    assert len(world.scheduler.backlog.held_back) == 1
    world.cancel(1)
    assert len(world.scheduler.backlog.held_back) == 0
    assert world.start_engine().preparing == {3}


def test_the_refusal_of_a_request_lets_in_one_that_was_held_back() -> None:
    world = world_with("block", limit=1)
    engine = world.start_engine()
    world.submit()
    world.submit()
    world.refuse(engine, 1)
    assert engine.preparing == {2}


def test_a_request_that_would_have_to_wait_lets_in_one_that_was_held_back() -> None:
    world = world_with("block", limit=2)
    engine = world.start_engine(sequences=1)
    world.submit()
    world.submit(wait=False)
    world.submit()
    world.prepare(engine, 1)
    assert engine.preparing == {2, 3}
    world.submit()
    assert len(world.scheduler.backlog.held_back) == 1
    world.prepare(engine, 2)
    assert world.endings[2] == ["overloaded"]
    assert engine.preparing == {3, 4}


def test_under_drop_oldest_a_newcomer_drops_the_oldest_waiter() -> None:
    world = world_with("drop_oldest")
    for _ in range(3):
        world.submit()
    assert why(world) == [(1, "dropped oldest")]
    assert world.scheduler.totals.rejected == 1


def test_under_drop_oldest_a_newcomer_drops_no_other_before_it_was_prepared() -> None:
    world = world_with("drop_oldest", limit=1)
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    world.submit()
    assert world.endings[2] == []
    world.refuse(engine, 3)
    assert world.endings[2] == []
    world.submit()
    world.prepare(engine, 4)
    assert world.endings[2] == ["overloaded"]
    assert world.endings[1] == [], "running work is never dropped"


@pytest.mark.parametrize("overflow", ["block", "drop_newest", "drop_oldest"])
@pytest.mark.parametrize("engine_up", [False, True])
def test_a_request_with_queue_false_is_refused_in_a_full_queue_whatever_the_policy(
    overflow: Overflow, engine_up: bool
) -> None:
    world = world_with(overflow, limit=1)
    engine = world.start_engine(sequences=0) if engine_up else None
    waiter = world.submit()
    if engine is not None:
        world.prepare(engine, waiter.key)
    refused = world.submit(queue=False)
    assert why(world) == [(refused.key, "queue full")]
    assert not world.endings[waiter.key]


@pytest.mark.parametrize("overflow", ["block", "drop_newest", "drop_oldest"])
@pytest.mark.parametrize("other", [(1, 1), (1, 2), (2, 9)])
def test_a_request_with_queue_false_that_is_prepared_while_the_queue_fills_takes_no_other_s_place(
    overflow: Overflow, other: tuple[int, int]
) -> None:
    world = world_with(overflow, limit=2)
    engine = world.start_engine(sequences=0)
    older = world.submit(supersede=(1, "a"), client=(1, 1))
    waiters = [world.submit(client=other)]
    newer = world.submit(supersede=(1, "a"), queue=False, client=(1, 1))
    world.cancel(older.key)
    waiters.append(world.submit(client=other))
    world.prepare(engine, newer.key)
    assert why(world) == [(older.key, None), (newer.key, "queue full")]
    assert not any(world.endings[waiter.key] for waiter in waiters)


@pytest.mark.parametrize("overflow", ["block", "drop_oldest"])
def test_requests_that_are_prepared_before_they_count_have_as_many_bytes_as_the_queue(overflow: Overflow) -> None:
    world = world_with(overflow, limit=1)
    engine = world.start_engine(sequences=0)
    world.submit(supersede=(1, "a"))
    world.prepare(engine, 1)
    for size in (60, 40, 1):
        world.submit(size=size, supersede=(1, "a"), queue=False)
    assert engine.preparing == {2, 3}
    assert why(world) == [(4, "queue full")]
    world.prepare(engine, 2)
    world.cancel(3)
    world.submit(size=100, supersede=(1, "a"), queue=False)
    assert 5 in engine.preparing, "the bytes of requests that count or have ended are free again"


def test_the_bytes_of_one_user_s_uncounted_requests_keep_no_other_user_out() -> None:
    world = world_with("drop_oldest", limit=1)
    engine = world.start_engine(sequences=0)
    world.submit(client=(1, 1))
    world.prepare(engine, 1)
    world.submit(size=100, client=(1, 1))
    world.submit(size=100, client=(1, 1))
    assert why(world) == [(3, "queue full")]
    world.submit(size=100, client=(2, 2))
    assert engine.preparing == {2, 4}


@pytest.mark.parametrize("engine_up", [False, True])
def test_under_drop_oldest_a_higher_class_is_never_dropped(engine_up: bool) -> None:
    world = world_with("drop_oldest", limit=1)
    engine = world.start_engine(sequences=0) if engine_up else None
    urgent = world.submit()
    other = world.submit(priority="throughput")
    if engine:
        world.prepare(engine, urgent.key)
        world.prepare(engine, other.key)
    assert why(world) == [(other.key, "queue full")]


def test_a_newcomer_of_the_higher_class_drops_the_lower() -> None:
    world = world_with("drop_oldest", limit=1)
    world.submit(priority="throughput")
    world.submit()
    assert why(world) == [(1, "dropped oldest")]


def test_a_newcomer_that_was_being_prepared_when_its_engine_died_is_not_forgotten() -> None:
    world = world_with("drop_oldest", limit=1)
    engine = world.start_engine(sequences=0)
    world.run_one(engine)
    world.submit()
    world.lose_engine(engine)
    assert world.start_engine().preparing == set(world.scheduler.requests) == {2}
    assert why(world) == [(1, "dropped oldest")]


def test_leaving_twice_counts_once() -> None:
    world = World()
    request = world.submit(size=10)
    backlog = Backlog(QueueBounds(), Charging())
    backlog.enter(request)
    backlog.leave(request)
    backlog.leave(request)
    assert len(backlog) == 0
    assert request.key not in backlog.counted
