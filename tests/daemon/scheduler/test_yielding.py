"""Prompts that yield to short answers of accounts behind theirs."""

import pytest

from car_daemon.scheduler.account import TURN
from car_daemon.scheduler.request import Request
from car_protocol.infer import Priority
from tests.daemon.scheduler.fakes import FakeEngine, World

Client = tuple[int, str]
LIGHT: Client = (1, "light")
HEAVY: Client = (1, "heavy")


def write(world: World, request: Request, tokens: int = 1) -> None:
    """Let an engine report tokens of an answer whose prompt was in the cache."""
    world.scheduler.advanced(request.key, 0, tokens)


def read(world: World, request: Request) -> None:
    """Let an engine report a chunk of a prompt, which was in the cache."""
    world.scheduler.advanced(request.key, 8, 0, cached=8)


def world_with_an_answer(
    client: Client = LIGHT, had: int = 1, priority: Priority = "latency_critical"
) -> tuple[World, FakeEngine, Request]:
    """Return an engine that writes an answer which had so many tokens."""
    world = World()
    engine = world.start_engine(sequences=4)
    answer = world.run_one(engine, client=client, priority=priority)
    write(world, answer, had)
    return world, engine, answer


def prompt_of(
    world: World, engine: FakeEngine, client: Client, ahead: int, priority: Priority = "latency_critical"
) -> Request:
    """Return a request whose prompt is read, of an account that had so many tokens meanwhile."""
    earlier = world.run_one(engine, client=client, priority=priority)
    write(world, earlier, ahead)
    world.end(engine, earlier.key)
    prompt = world.run_one(engine, client=client, priority=priority)
    read(world, prompt)
    world.step(engine)
    return prompt


def test_a_prompt_yields_to_a_short_answer_until_its_account_had_as_much() -> None:
    world, engine, answer = world_with_an_answer()
    prompt = prompt_of(world, engine, HEAVY, ahead=TURN + 20)
    assert engine.yielding == {prompt.key}
    waited = 0
    while engine.yielding:
        write(world, answer)
        world.step(engine)
        waited += 1
    assert waited == 21


def test_a_prompt_yields_to_no_answer_that_had_its_turn() -> None:
    world, engine, answer = world_with_an_answer(had=TURN - 1)
    prompt = prompt_of(world, engine, HEAVY, ahead=10 * TURN)
    assert engine.yielding == {prompt.key}
    write(world, answer)
    world.step(engine)
    assert not engine.yielding


@pytest.mark.parametrize(("client", "ahead"), [(LIGHT, 10 * TURN), (HEAVY, TURN - 1)])
def test_a_prompt_yields_neither_to_its_own_label_nor_to_one_less_than_a_turn_behind(
    client: Client, ahead: int
) -> None:
    world, engine, _ = world_with_an_answer()
    prompt_of(world, engine, client, ahead)
    assert not engine.yielding


def test_between_users_only_what_the_users_had_counts() -> None:
    world, engine, _ = world_with_an_answer(client=(1, "little"))
    much = world.run_one(engine, client=(1, "much"))
    prompt_of(world, engine, (2, "some"), ahead=5 * TURN)
    assert engine.yielding
    write(world, much, 5 * TURN)
    world.step(engine)
    assert not engine.yielding


def test_a_user_of_twice_the_weight_yields_after_twice_as_much() -> None:
    world, engine, _ = world_with_an_answer(client=(1, ""))
    world.scheduler.set_weights({2: 2.0})
    prompt_of(world, engine, (2, ""), ahead=2 * TURN - 20)
    assert not engine.yielding
    later = prompt_of(world, engine, (2, ""), ahead=TURN)
    assert later.key in engine.yielding


@pytest.mark.parametrize(("client", "yields"), [((2, ""), True), (HEAVY, False)])
def test_a_prompt_yields_to_another_user_from_its_lease_on(client: Client, yields: bool) -> None:
    world, engine, answer = world_with_an_answer()
    earlier = world.run_one(engine, client=client)
    write(world, earlier, TURN + 1)
    prompt = world.run_one(engine, client=client)
    assert (prompt.key in engine.yielding) == yields
    world.end(engine, answer.key)
    later = world.run_one(engine, client=client)
    assert later.key not in engine.yielding


@pytest.mark.parametrize("prompts", ["latency_critical", "throughput"])
@pytest.mark.parametrize("answers", ["latency_critical", "throughput"])
def test_an_urgent_prompt_yields_to_no_answer_in_the_background(prompts: Priority, answers: Priority) -> None:
    world, engine, _ = world_with_an_answer(priority=answers)
    prompt_of(world, engine, HEAVY, ahead=10 * TURN, priority=prompts)
    assert bool(engine.yielding) == (prompts == "throughput" or answers == "latency_critical")


def test_the_end_of_the_last_short_answer_ends_the_wait() -> None:
    world, engine, answer = world_with_an_answer()
    prompt_of(world, engine, HEAVY, ahead=10 * TURN)
    world.end(engine, answer.key)
    world.step(engine)
    assert not engine.yielding


def test_an_engine_is_told_of_changes_alone() -> None:
    world, engine, answer = world_with_an_answer()
    prompt_of(world, engine, HEAVY, ahead=10 * TURN)
    write(world, answer)
    assert world.scheduler.stepped(engine.number) == []


def test_the_engine_after_a_dead_one_is_told_anew() -> None:
    world, engine, _ = world_with_an_answer()
    prompt_of(world, engine, HEAVY, ahead=10 * TURN)
    world.lose_engine(engine)
    assert repr(world.scheduler.yielding) == "<Yielding 0 prompts>"
