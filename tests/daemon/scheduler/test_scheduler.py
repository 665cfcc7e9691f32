"""The events of requests that end well, and refusals."""

from car_daemon.scheduler.account import LaneTarget
from car_daemon.scheduler.backlog import QueueBounds
from car_daemon.scheduler.request import Prompt, Request, RequestSpec, State
from tests.daemon.scheduler.fakes import World, failure


def test_a_submitted_request_is_prepared_by_the_engine_that_is_up() -> None:
    world = World()
    engine = world.start_engine()
    request = world.submit()
    assert engine.preparing == {1}
    assert request.state is State.PREPARING
    assert world.gate.engine_of("m") == engine.number


def test_a_request_without_an_engine_is_accepted_and_prepared_once_one_is_ready() -> None:
    world = World()
    request = world.submit()
    assert request.state is State.ACCEPTED
    world.start_engine("other")
    assert request.state is State.ACCEPTED
    assert world.start_engine().preparing == {1}


def test_a_prepared_request_runs_at_once_where_a_sequence_is_free() -> None:
    world = World()
    engine = world.start_engine()
    world.now = 3.0
    request = world.run_one(engine)
    assert engine.running == {1}
    assert (request.state, request.engine, request.leased_at) == (State.RUNNING, engine.number, 3.0)


def test_a_prepared_request_waits_while_all_sequences_are_leased() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    waiting = world.run_one(engine)
    assert waiting in world.scheduler.waiting
    assert (waiting.state, waiting.engine) == (State.WAITING, None)


def test_a_request_that_ends_completes_and_hands_its_sequence_to_the_next() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    for _ in range(3):
        world.run_one(engine)
    world.end(engine, 1)
    assert world.endings[1] == ["completed"]
    assert engine.running == {2}


def test_a_request_that_fails_in_its_engine_is_an_internal_error() -> None:
    world = World()
    engine = world.start_engine()
    world.run_one(engine)
    world.end(engine, 1, failed=True)
    assert world.endings[1] == ["internal_error"]
    assert world.gate.in_use == 0


def test_requests_that_are_prepared_out_of_order_wait_in_the_order_of_their_arrival() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    for _ in range(3):
        world.submit()
    for key in (4, 2, 3):
        world.prepare(engine, key)
    assert [request.key for request in world.scheduler.waiting.order(LaneTarget("m", None, None))] == [2, 3, 4]


def test_a_latency_critical_request_overtakes_waiting_throughput() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    for priority in ("throughput", "latency_critical"):
        world.prepare(engine, world.submit(priority=priority).key)
    world.end(engine, 1)
    assert engine.running == {3}


def test_a_full_model_does_not_hold_up_another() -> None:
    world = World()
    full, free = world.start_engine("full", 1), world.start_engine("free", 1)
    world.run_one(full)
    world.run_one(full)
    world.run_one(free)
    assert free.running == {3}


def test_the_machine_limit_makes_models_take_turns() -> None:
    world = World(machine_limit=1)
    first, second = world.start_engine("a"), world.start_engine("b")
    world.run_one(first)
    world.run_one(second)
    assert second.running == set()
    world.end(first, 1)
    assert second.running == {2}


def test_a_refused_request_gets_the_engines_reason() -> None:
    world = World()
    engine = world.start_engine()
    world.submit()
    engine.preparing.remove(1)
    fail = failure(world.scheduler.refused(1, 1, "context_exceeded", {"context_tokens": 256}, 0.0))
    assert (fail.request.key, fail.reason, fail.data) == (1, "context_exceeded", {"context_tokens": 256})
    assert world.scheduler.totals.rejected == 1


def test_a_running_request_that_its_engine_refuses_returns_its_lease() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    engine.end(1)
    world.do(world.scheduler.refused(1, 1, "internal_error", {}, world.now))
    assert world.endings[1] == ["internal_error"]
    assert engine.running == {2}


def test_without_waiting_a_request_runs_where_a_sequence_is_free() -> None:
    world = World()
    engine = world.start_engine()
    world.prepare(engine, world.submit(wait=False).key)
    assert engine.running == {1}


def test_without_waiting_a_request_is_refused_where_none_is_free() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    request = world.submit(wait=False)
    assert world.endings[request.key] == ["overloaded"]
    assert not engine.preparing
    assert world.scheduler.totals.rejected == 1


def test_without_waiting_a_request_is_refused_while_no_engine_is_up() -> None:
    world = World()
    world.submit(wait=False)
    assert world.endings[1] == ["overloaded"]


def test_without_waiting_only_one_of_two_gets_the_last_sequence() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    for _ in range(2):
        world.submit(wait=False)
    world.prepare(engine, 2)
    world.prepare(engine, 1)
    assert engine.running == {2}
    assert world.endings == {1: ["overloaded"], 2: []}


def test_the_refusal_of_a_request_that_will_not_wait_names_the_reason() -> None:
    world = World()
    fail = failure(world.scheduler.submit(Request(RequestSpec(key=1, model="m", arrived=0.0, wait=False)), 0.0))
    queue = {"policy": "block", "queued": 0, "queue_limit": 64, "user_queued": 0, "user_share": 64}
    assert fail.data == {"why": "no free sequence", **queue}


def test_a_draining_scheduler_refuses_new_requests_and_finishes_the_others() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    world.scheduler.drain()
    world.submit()
    assert world.endings[3] == ["draining"]
    world.end(engine, 1)
    world.end(engine, 2)
    assert world.endings == {1: ["completed"], 2: ["completed"], 3: ["draining"]}


def test_at_the_end_of_draining_everything_in_flight_is_refused_at_once() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    world.submit()
    world.submit("not loaded")
    world.do(world.scheduler.refuse_all("draining", world.now))
    assert set(map(tuple, world.endings.values())) == {("draining",)}
    assert engine.halted == {1}
    assert not world.scheduler.requests


def test_a_failed_model_refuses_what_waits_for_it_and_nothing_else() -> None:
    world = World()
    world.submit("broken")
    world.submit("broken", priority="throughput")
    world.submit("other")
    world.fail_model("broken")
    assert world.endings == {1: ["model_unavailable"], 2: ["model_unavailable"], 3: []}


def test_a_failed_model_refuses_what_was_prepared_by_the_engine_that_died() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.run_one(engine)
    world.lose_engine(engine)
    world.fail_model("m")
    assert world.endings == {1: ["model_unavailable"], 2: ["model_unavailable"]}
    assert len(world.scheduler.waiting.requests) == 0


def test_events_of_an_unknown_request_change_nothing() -> None:
    world = World()
    scheduler = world.scheduler
    world.start_engine()
    assert scheduler.prepared(99, Prompt(1, 1), 0.0) == []
    assert scheduler.refused(99, 1, "context_exceeded", {}, 0.0) == []
    assert scheduler.ended(99, 1, 0.0) == []
    assert scheduler.parked(99, 1, 0.0) == []
    assert scheduler.cancel(99, 0.0) == []
    scheduler.advanced(99, 1, 1)
    assert (scheduler.totals.received, world.gate.in_use) == (0, 0)


def test_a_cancelled_request_that_its_engine_refuses_returns_its_lease() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    world.do(world.scheduler.cancel(1, world.now))
    assert world.scheduler.gate.in_use == 1
    world.do(world.scheduler.refused(1, engine.number, "internal_error", {}, world.now))
    assert world.scheduler.gate.in_use == 0


def test_a_closed_engine_finishes_what_it_has_and_newcomers_wait_for_the_next_one() -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    world.run_one(engine)
    waiting = world.submit()
    world.prepare(engine, waiting.key)
    world.scheduler.gate.close("m")
    newcomer = world.submit()
    unwilling = world.submit(wait=False)
    assert (newcomer.state, world.endings[unwilling.key]) == (State.ACCEPTED, ["overloaded"])
    world.end(engine, 1)
    world.end(engine, waiting.key)
    assert newcomer.state is State.ACCEPTED
    world.lose_engine(engine)
    assert world.start_engine().preparing == {newcomer.key}


def test_the_owners_of_state_show_their_counters() -> None:
    world = World(bounds=QueueBounds(limit=2))
    engine = world.start_engine(sequences=1)
    for key in range(4):
        world.submit(client=(0, key), session=(0, "s"))
    world.prepare(engine, 1)
    world.prepare(engine, 2)
    scheduler = world.scheduler
    assert repr(scheduler.backlog) == "<Backlog 2/2, 0 bytes, 1 held back>"
    assert repr(scheduler.waiting) == "<WaitingRequests 1, 0 of them parked>"
    assert repr(world.gate) == "<Gate 1 leased, limit None, pressure none, 1:m 1/1>"
    assert repr(scheduler.charging) == "<Charging 1 users>"
    assert repr(scheduler).startswith("<Scheduler <SharedState <OutcomeTotals 4 received, 4 in flight>, <Backlog")
