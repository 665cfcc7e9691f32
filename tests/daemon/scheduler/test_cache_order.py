"""Cache-aware order: a resident prompt goes first where fairness ranks alike, and each request is passed rarely."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from car_daemon.scheduler.order import MOST_PASSED
from car_daemon.scheduler.request import Request, State
from tests.daemon.scheduler.fakes import PROMPT_TOKENS, FakeEngine, World
from tests.daemon.scheduler.test_fairness import LENGTHS, MOST_TOKENS, SETTINGS, ClosedLoop, siblings_at


def queue(*labels: str, model: str = "m") -> tuple[World, FakeEngine, list[Request]]:
    """Return an engine of one sequence, which runs a request of its own, and the requests that wait for it."""
    world = World()
    engine = world.start_engine(model, sequences=1)
    world.run_one(engine, client=(9, "runs"))
    return world, engine, [world.run_one(engine, client=(0, label)) for label in labels]


def next_of(world: World, engine: FakeEngine) -> Request:
    """Let the running request end and return the one that starts."""
    (key,) = engine.running
    world.end(engine, key)
    (key,) = engine.running
    return world.requests[key]


@pytest.mark.parametrize("labels", ["aaa", "abc"])
def test_of_requests_that_fairness_ranks_alike_the_one_with_a_resident_prompt_goes_first(labels: str) -> None:
    world, engine, (first, second, third) = queue(*labels)
    world.have_resident(engine, third)
    assert next_of(world, engine) is third
    assert (next_of(world, engine), next_of(world, engine)) == (first, second)


def test_of_several_resident_prompts_the_first_by_fairness_goes_first() -> None:
    world, engine, (first, second, third) = queue("a", "b", "c")
    world.have_resident(engine, third, second)
    assert next_of(world, engine) is second
    world.have_resident(engine, third, first)
    assert next_of(world, engine) is first


def test_the_order_is_that_of_fairness_while_nothing_is_resident() -> None:
    world, engine, waiting = queue("a", "b", "a", "c")
    world.have_resident(engine)
    assert [next_of(world, engine) for _ in waiting] == [waiting[place] for place in (0, 1, 3, 2)]


def test_what_was_resident_is_forgotten_with_the_next_lease_of_the_engine() -> None:
    world, engine, (first, second, third) = queue("a", "a", "a")
    world.have_resident(engine, second, third)
    assert next_of(world, engine) is second
    assert (next_of(world, engine), next_of(world, engine)) == (first, third)


def test_what_was_resident_is_forgotten_with_the_engine() -> None:
    world, engine, (first, _, third) = queue("a", "a", "a")
    world.have_resident(engine, third)
    world.lose_engine(engine)
    other = world.start_engine("m", sequences=1)
    world.prepare_all(other)
    assert next(iter(other.running)) in (1, first.key)
    assert third.state is State.WAITING


def test_an_urgent_request_is_passed_by_none_of_a_lower_class() -> None:
    world, engine, (first,) = queue("a")
    lower = world.run_one(engine, client=(0, "b"), priority="throughput")
    world.have_resident(engine, lower)
    assert next_of(world, engine) is first


@pytest.mark.parametrize("served", [30, 200])
def test_a_client_that_was_served_more_than_a_lease_goes_first_by_no_resident_prompt(served: int) -> None:
    world = World()
    engine = world.start_engine(sequences=1)
    ahead = world.run_one(engine, client=(0, "ahead"))
    behind = world.run_one(engine, client=(0, "behind"))
    again = world.run_one(engine, client=(0, "ahead"))
    world.advance(ahead.key, served)
    world.have_resident(engine, again)
    assert next_of(world, engine) is (again if served == 30 else behind)


def test_a_request_is_passed_a_few_times_at_most_however_many_resident_ones_come() -> None:
    world, engine, (first,) = queue("a")
    started = []
    while first.state is State.WAITING:
        resident = world.run_one(engine, client=(0, "a"))
        world.have_resident(engine, resident)
        started.append(next_of(world, engine))
    assert started.index(first) == MOST_PASSED
    assert all(f"passed by {MOST_PASSED}" in why for verb, key, why in world.decisions[-1:])


def test_resident_requests_of_another_model_or_unknown_ones_change_nothing() -> None:
    world, engine, (first, second) = queue("a", "a")
    other = world.start_engine("other", sequences=1)
    world.scheduler.resident(other.number, [second.key, 10_000])
    assert next_of(world, engine) is first


def test_a_resident_request_that_no_free_engine_may_run_blocks_no_other() -> None:
    world = World()
    gpu, cpu = world.start_engine(sequences=1, device="gpu0"), world.start_engine(sequences=1)
    for _ in range(2):
        world.run_one(gpu)
    waiting = [world.submit(device=device) for device in ("cpu", "gpu")]
    for request in waiting:
        world.prepare(gpu if request.key in gpu.preparing else cpu, request.key)
    world.have_resident(cpu, *waiting)
    world.end(cpu, next(iter(cpu.running)))
    assert [request.state for request in waiting] == [State.RUNNING, State.WAITING]


@pytest.mark.parametrize("level", [0, 1, 2])
@SETTINGS
@given(LENGTHS, st.lists(st.integers(0, 40), max_size=3), st.randoms(use_true_random=False))
def test_with_resident_prompts_service_differs_by_one_lease_more(
    level: int, lengths: list[int], resident: list[int], random: Random
) -> None:
    loop = ClosedLoop(siblings_at(level), sequences=2)
    for _ in range(60):
        waiting = list(loop.world.scheduler.waiting.requests.values())
        loop.world.have_resident(loop.engine, *(waiting[place % len(waiting)] for place in resident))
        loop.turn(random, random.choice(lengths))
        for one, other in combinations(loop.siblings, 2):
            difference = abs(loop.served[one] - loop.served[other])
            assert difference <= (2 + 2) * (PROMPT_TOKENS + MOST_TOKENS)
    assert max(request.passed for request in loop.world.requests.values()) <= MOST_PASSED


@SETTINGS
@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_client_whose_prompts_are_never_resident_waits_for_a_few_leases_more(sequences: int, random: Random) -> None:
    loop = ClosedLoop([(1, 1, "", str(label)) for label in range(6)], sequences=sequences)
    newcomer = loop.submit((1, 1, "", "newcomer"))
    before = loop.releases.total()
    while newcomer.state is State.WAITING:
        others = [key for key in loop.world.scheduler.waiting.requests if key != newcomer.key]
        loop.world.scheduler.resident(loop.engine.number, others)
        loop.turn(random, MOST_TOKENS)
    assert newcomer.passed <= MOST_PASSED
    assert loop.releases.total() - before <= len(loop.siblings) * 2 + MOST_PASSED + 1
