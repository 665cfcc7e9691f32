"""Which replica a request runs on: its session's, the one that knows its prompt, else the least loaded."""

from array import array

import pytest

from car_daemon.scheduler.gate import Gate
from car_daemon.scheduler.replicas import EngineOffer, Router, blocks_of
from car_daemon.scheduler.request import Prompt, Request, RequestSpec, Session, State
from tests.daemon.scheduler.fakes import World, failure


def prompt(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def request(key: int, *, session: Session | None = None, blocks: tuple[int, ...] = ()) -> Request:
    one = Request(RequestSpec(key=key, model="m", arrived=0.0, session=session))
    one.prompt = Prompt(1, 1, blocks)
    return one


def chosen(router: Router, asked: Request, free: set[int]) -> int | None:
    """Return the engine that a router knows a request by: its session's home, else one that has its blocks."""
    home = router.home(asked)
    if home in free:
        return home
    return router.holder(asked, lambda engine: engine in free)


def gate_of(*offers: EngineOffer) -> Gate:
    gate = Gate()
    for number, offer in enumerate(offers, start=1):
        gate.declare(number, offer)
    return gate


def test_the_least_loaded_replica_is_taken_first() -> None:
    gate = gate_of(EngineOffer("m", 2), EngineOffer("m", 4))
    assert [gate.try_lease(request(key)) for key in range(3)] == [2, 1, 2]


def test_the_replica_with_most_tokens_per_second_for_each_is_taken_first() -> None:
    fast = EngineOffer("m", 4, "gpu0", rates=(100.0, 190.0, 270.0, 340.0))
    slow = EngineOffer("m", 4, "cpu", rates=(10.0, 19.0, 27.0, 34.0))
    gate = gate_of(slow, fast)
    assert [gate.try_lease(request(key)) for key in range(6)] == [2, 2, 2, 2, 1, 1]


def test_two_equal_replicas_fill_evenly() -> None:
    gate = gate_of(EngineOffer("m", 3, rates=(10.0, 15.0, 18.0)), EngineOffer("m", 3, rates=(10.0, 15.0, 18.0)))
    assert [gate.try_lease(request(key)) for key in range(4)] == [1, 2, 1, 2]


def test_of_two_idle_replicas_the_one_with_fewer_sessions_is_taken() -> None:
    gate = gate_of(EngineOffer("m", 2), EngineOffer("m", 2))
    assert gate.try_lease(request(1, session=(0, "a"))) == 1
    gate.release(1, 1)
    assert gate.try_lease(request(2, session=(0, "b"))) == 2


def test_a_session_stays_on_its_replica_also_where_another_is_less_loaded() -> None:
    router = Router()
    router.started(request(1, session=(0, "a")), 2)
    assert chosen(router, request(2, session=(0, "a")), {1, 2}) == 2


def test_the_session_of_another_user_is_another_session() -> None:
    router = Router()
    router.started(request(1, session=(0, "a")), 2)
    assert chosen(router, request(2, session=(1, "a")), {1, 2}) is None


def test_a_session_of_another_model_is_another_session() -> None:
    router = Router()
    router.started(request(1, session=(0, "a")), 2)
    router.started(Request(RequestSpec(key=2, model="other", arrived=0.0, session=(0, "a"))), 7)
    assert chosen(router, request(3, session=(0, "a")), {1, 2, 7}) == 2


def test_a_session_whose_replica_is_full_moves_to_another_and_stays_there() -> None:
    router = Router()
    router.started(request(1, session=(0, "a")), 2)
    moved = request(2, session=(0, "a"))
    assert chosen(router, moved, {1}) is None
    router.started(moved, 1)
    assert chosen(router, request(3, session=(0, "a")), {1, 2}) == 1


def test_a_prompt_goes_where_most_of_it_is_known() -> None:
    router = Router()
    router.started(request(1, blocks=(11, 12, 13)), 1)
    router.started(request(2, blocks=(11, 12, 99)), 2)
    assert chosen(router, request(3, blocks=(11, 12, 13, 14)), {1, 2}) == 1
    assert chosen(router, request(4, blocks=(11, 12, 99)), {1, 2}) == 2
    assert chosen(router, request(5, blocks=(77,)), {1, 2}) is None


def test_a_dead_engine_is_home_to_no_session() -> None:
    router = Router()
    router.started(request(1, session=(0, "a"), blocks=(1, 2)), 1)
    router.withdraw(1)
    assert chosen(router, request(2, session=(0, "a"), blocks=(1, 2)), {2}) is None


def test_a_session_that_moves_counts_where_it_is() -> None:
    router = Router()
    for engine in (1, 1, 2):
        router.started(request(1, session=(0, "a")), engine)
    assert (router.at_home[1], router.at_home[2]) == (0, 1)
    router.started(request(3, session=(0, "a")), 1)
    assert (router.at_home[1], router.at_home[2]) == (1, 0)


def test_what_is_remembered_is_bounded() -> None:
    router = Router()
    router.started(request(0, session=(0, "first"), blocks=(-1,)), 1)
    for key in range(1, 5000):
        router.started(request(key, session=(0, str(key)), blocks=(key,)), 2)
    router.started(request(5000, blocks=tuple(range(10_000, 15_000))), 1)
    assert chosen(router, request(5001, session=(0, "first"), blocks=(-1,)), {1, 2}) is None
    assert repr(router) == "<Router 4096 sessions, 8192 blocks>"


def test_the_blocks_of_many_engines_share_one_bound() -> None:
    router = Router()
    for engine in range(20):
        router.started(request(engine, blocks=tuple(range(engine * 4096, (engine + 1) * 4096))), engine)
    assert repr(router) == "<Router 0 sessions, 65536 blocks>"
    assert chosen(router, request(99, blocks=(19 * 4096,)), set(range(20))) == 19
    assert chosen(router, request(99, blocks=(0,)), set(range(20))) is None


def test_the_first_blocks_of_a_prompt_are_forgotten_last() -> None:
    router = Router()
    router.started(request(1, blocks=tuple(range(4096))), 1)
    router.started(request(2, blocks=(10_000,)), 1)
    assert chosen(router, request(3, blocks=(0,)), {1}) == 1
    assert chosen(router, request(3, blocks=(4095,)), {1}) is None


def test_a_block_that_many_replicas_have_is_remembered_of_the_latest() -> None:
    router = Router()
    for engine in range(20):
        router.started(request(engine, blocks=(7,)), engine)
    assert chosen(router, request(99, blocks=(7,)), set(range(20))) == 19
    assert chosen(router, request(99, blocks=(7,)), set(range(12))) is None


def test_blocks_are_equal_where_a_prompt_and_all_before_are_equal() -> None:
    tokens = list(range(256))
    whole = blocks_of(prompt(*tokens), "0:")
    assert len(whole) == 4
    assert blocks_of(prompt(*tokens[:130]), "0:") == whole[:2]
    changed = blocks_of(prompt(*tokens[:64], 7, *tokens[65:]), "0:")
    assert changed[0] == whole[0]
    assert not set(changed[1:]) & set(whole)


def test_blocks_of_another_namespace_share_nothing() -> None:
    assert not set(blocks_of(prompt(*range(256)), "0:a")) & set(blocks_of(prompt(*range(256)), "0:b"))


def test_a_prompt_shorter_than_a_block_has_none() -> None:
    assert blocks_of(prompt(1, 2, 3), "0:") == ()


# With the gate and the scheduler.


def test_the_leases_of_two_replicas_are_spread() -> None:
    gate = Gate()
    for engine in (1, 2):
        gate.declare(engine, EngineOffer("m", 2))
    assert [gate.try_lease(request(key)) for key in range(5)] == [1, 2, 1, 2, None]


@pytest.mark.parametrize(("device", "engines"), [("cpu", [1, None]), ("gpu", [2, 3]), ("gpu1", [3, None])])
def test_a_request_that_names_a_device_runs_there_or_waits(device: str, engines: list[int | None]) -> None:
    gate = Gate()
    for engine, on in ((1, "cpu"), (2, "gpu0"), (3, "gpu1")):
        gate.declare(engine, EngineOffer("m", 1, on))
    assert [
        gate.try_lease(Request(RequestSpec(key=key, model="m", arrived=0.0, device=device))) for key in (1, 2)
    ] == engines


def test_a_request_that_fits_only_the_longer_sequences_runs_there() -> None:
    gate = Gate()
    gate.declare(1, EngineOffer("m", 1, "gpu0", 256))
    gate.declare(2, EngineOffer("m", 1, "cpu", 1024))
    long = request(1)
    long.prompt = Prompt(500, 100)
    assert gate.try_lease(long) == 2


def test_the_engine_of_the_longest_context_on_the_device_prepares_so_that_it_refuses_what_fits_none() -> None:
    gate = Gate()
    for engine, offer in enumerate(
        [EngineOffer("m", 1, "gpu0", 256), EngineOffer("m", 1, "cpu", 1024), EngineOffer("m", 1, "gpu1", 512)], start=1
    ):
        gate.declare(engine, offer)
    assert [gate.engine_of("m", device) for device in (None, "cpu", "gpu", "gpu0", "gpu7")] == [2, 2, 3, 1, None]


def test_a_request_that_fits_both_lengths_runs_on_either() -> None:
    gate = Gate()
    gate.declare(1, EngineOffer("m", 1, "gpu0", 256))
    gate.declare(2, EngineOffer("m", 1, "cpu", 1024))
    short = [request(key) for key in (1, 2)]
    for each in short:
        each.prompt = Prompt(100, 100)
    assert {gate.try_lease(each) for each in short} == {1, 2}


def test_a_request_that_is_too_long_for_its_device_runs_there_all_the_same_to_be_refused() -> None:
    gate = Gate()
    gate.declare(1, EngineOffer("m", 1, "gpu0", 256))
    gate.declare(2, EngineOffer("m", 1, "cpu", 1024))
    long = Request(RequestSpec(key=1, model="m", arrived=0.0, device="gpu0"))
    long.prompt = Prompt(500, 100)
    assert gate.try_lease(long) == 1


def test_what_waits_for_the_device_of_a_replica_that_died_is_prepared_anew_by_its_next_life() -> None:
    world = World()
    cpu, gpu = world.start_engine(device="cpu"), world.start_engine(sequences=1, device="gpu0")
    for wanted in ("gpu", "gpu", None):
        one = world.submit(device=wanted)
        world.prepare(world.engine_with(one.key) or cpu, one.key)
    world.lose_engine(gpu)
    assert [world.requests[key].state for key in (1, 2)] == [State.ACCEPTED] * 2
    assert cpu.running == {3}
    following = world.start_engine(sequences=2, device="gpu0")
    for key in (1, 2):
        world.prepare(world.engine_with(key) or cpu, key)
    assert following.running == {1, 2}


def test_a_waiter_for_a_full_device_does_not_hold_up_others() -> None:
    world = World()
    cpu, gpu = world.start_engine(sequences=1, device="cpu"), world.start_engine(sequences=1, device="gpu0")
    for wanted in ("cpu", "cpu", "gpu"):
        one = world.submit(device=wanted)
        world.prepare(world.engine_with(one.key) or cpu, one.key)
    assert (cpu.running, gpu.running) == ({1}, {3})


def test_the_waiting_work_of_a_replica_that_died_runs_on_the_other() -> None:
    world = World()
    first, second = world.start_engine(sequences=1), world.start_engine(sequences=2)
    for _ in range(3):
        one = world.submit()
        world.prepare(world.engine_with(one.key) or first, one.key)
    preparing = world.submit()
    assert preparing.key in first.preparing | second.preparing
    world.lose_engine(first if first.preparing else second)
    (left,) = world.engines.values()
    assert preparing.key in left.preparing
    for key in sorted(left.preparing):
        world.prepare(left, key)
    while world.scheduler.requests:
        world.end(left, left.may_end[0])
    assert list(world.endings.values()) == [["completed"]] * 4


def test_a_parked_request_goes_on_in_the_engine_that_has_its_cells() -> None:
    world = World()
    first = world.start_engine(sequences=1)
    parked = world.run_one(first, priority="throughput")
    world.run_one(first)
    world.set_aside(first, parked.key)
    second = world.start_engine(sequences=2)
    world.do(world.scheduler.allocate(world.now))
    assert parked.state is State.PARKED
    assert not second.running
    world.end(first, 2)
    assert first.running == {parked.key}


def test_what_waits_for_a_device_that_is_gone_for_good_is_refused() -> None:
    world = World()
    world.start_engine(device="cpu")
    for wanted in ("gpu", "cpu", None):
        world.submit(device=wanted)
    world.fail_model("m", left=("cpu",))
    assert [world.endings[key] for key in (1, 2, 3)] == [["model_unavailable"], [], []]
    assert failure(world.fails).request.key == 1
