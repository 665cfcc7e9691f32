"""Places in a full queue: shared at each level, between processes, tenants and labels of one user as between users."""

from collections import Counter
from random import Random

import pytest

from car_daemon.scheduler.backlog import Overflow, QueueBounds
from car_daemon.scheduler.request import Request, State
from car_protocol.infer import Priority
from tests.daemon.scheduler.fakes import FakeEngine, World

LIMIT = 64
Path = tuple[int, int, str, str]
FLOOD: Path = (1, 10, "", "flood")
# An account that differs from the flood at each level.
NEWCOMERS: list[Path] = [
    (2, 20, "", "flood"),
    (1, 11, "", "flood"),
    (1, 10, "key", "flood"),
    (1, 10, "", "newcomer"),
]
LEVELS = ("user", "process", "tenant", "label")


def submit(world: World, path: Path, *, model: str = "m", priority: Priority = "latency_critical") -> Request:
    uid, process, tenant, label = path
    return world.submit(model, client=(uid, label), process=process, tenant=tenant, priority=priority)


def flooded(path: Path = FLOOD, *, limit: int = LIMIT, overflow: Overflow = "block") -> tuple[World, FakeEngine]:
    """Return a daemon of 4 sequences after 100 requests of one account, of which 4 run and the others wait."""
    world = World(bounds=QueueBounds(limit, overflow=overflow))
    engine = world.start_engine(sequences=4)
    for _ in range(100):
        submit(world, path)
        world.prepare_all(engine)
    return world, engine


def places(world: World, level: int) -> Counter[tuple[object, ...]]:
    """Return the places of the accounts at a level, by their paths."""
    return Counter(request.path[: level + 1] for request in world.scheduler.backlog.counted.values())


@pytest.mark.parametrize("newcomer", NEWCOMERS, ids=LEVELS)
def test_beside_a_hundred_long_answers_of_one_account_another_one_runs_as_soon_as_one_of_them_is_parked(
    newcomer: Path,
) -> None:
    world, engine = flooded()
    request = submit(world, newcomer)
    world.prepare_all(engine)
    world.pass_step()
    (parked,) = engine.to_park
    world.set_aside(engine, parked)
    assert request.key in engine.running
    assert len(world.scheduler.backlog) == LIMIT


@pytest.mark.parametrize("newcomer", NEWCOMERS, ids=LEVELS)
def test_the_place_is_the_newest_of_the_account_with_most_and_that_request_is_held_back(newcomer: Path) -> None:
    world, _ = flooded()
    newest = max(world.scheduler.backlog.counted)
    submit(world, newcomer)
    assert world.requests[newest].state is State.ACCEPTED
    assert newest in world.scheduler.backlog.held_back
    second = submit(world, newcomer)
    assert second.key in world.scheduler.backlog.held_back, "an account with a place takes no other"


def test_three_hundred_fresh_labels_of_a_key_keep_no_other_key_waiting() -> None:
    world = World(bounds=QueueBounds(LIMIT))
    engine = world.start_engine(sequences=4)
    for number in range(300):
        submit(world, (1, 10, "default", f"fresh {number}"))
        world.prepare_all(engine)
    # The name of that key as a label of another one is nothing of its own.
    submit(world, (1, 10, "default", "obsidian"))
    request = submit(world, (1, 10, "obsidian", "OpenAI"))
    world.prepare_all(engine)
    world.pass_step()
    while request.key not in engine.running:
        world.set_aside(engine, min(engine.to_park))


def test_a_label_takes_no_place_of_a_label_that_has_only_one_and_enters_as_a_lease_begins() -> None:
    world = World(bounds=QueueBounds(4))
    engine = world.start_engine(sequences=1)
    for number in range(5):
        submit(world, (1, 10, "", f"label {number}"))
        world.prepare_all(engine)
    before = dict(world.scheduler.backlog.counted)
    newcomer = submit(world, (1, 10, "", "newcomer"))
    assert newcomer.key in world.scheduler.backlog.held_back
    assert world.scheduler.backlog.counted == before
    world.end(engine, 1)
    assert newcomer.key in world.scheduler.backlog.counted


def test_a_label_whose_last_place_became_a_lease_takes_the_next_from_a_label_with_more() -> None:
    world, engine = flooded(limit=8)
    mine = [submit(world, (1, 10, "", "mine")) for _ in range(3)]
    for request in mine:
        world.prepare_all(engine)
        world.pass_step()
        world.set_aside(engine, min(engine.to_park))
        assert request.key in engine.running
        world.end(engine, request.key)
    assert len(world.scheduler.backlog) == 8


def test_an_app_whose_model_is_idle_gets_a_place_beside_one_that_floods_another_model() -> None:
    world, _ = flooded()
    idle = world.start_engine("idle", sequences=0)
    first = submit(world, (1, 11, "", ""), model="idle")
    second = submit(world, (1, 12, "", ""), model="idle")
    assert idle.preparing == {first.key, second.key}


def test_a_request_that_a_user_gives_up_is_of_its_busiest_label() -> None:
    world, _ = flooded()
    modest = submit(world, (1, 10, "", "modest"))
    submit(world, (2, 20, "", ""))
    assert modest.key in world.scheduler.backlog.counted


@pytest.mark.parametrize("newcomer", NEWCOMERS[1:], ids=LEVELS[1:])
@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
def test_a_newcomer_without_a_place_drops_the_newest_of_the_account_with_most(
    overflow: Overflow, newcomer: Path
) -> None:
    world, engine = flooded(overflow=overflow)
    newest = max(world.scheduler.backlog.counted)
    drops = len(world.fails)
    request = submit(world, newcomer)
    world.prepare_all(engine)
    assert [(fail.request.key, fail.data["why"]) for fail in world.fails[drops:]] == [(newest, "above its share")]
    assert request.state is State.WAITING


def test_under_drop_oldest_a_flood_drops_its_own_oldest_and_no_other_label_of_its_program() -> None:
    world, engine = flooded(overflow="drop_oldest")
    world.prepare(engine, submit(world, (1, 10, "", "modest")).key)
    for _ in range(100):
        submit(world, FLOOD)
        world.prepare_all(engine)
    assert {fail.request.spec.client[1] for fail in world.fails} == {FLOOD[3]}


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
def test_throughput_work_drops_no_urgent_work_of_another_label(overflow: Overflow) -> None:
    world, engine = flooded(overflow=overflow)
    drops = len(world.fails)
    request = submit(world, (1, 10, "", "other"), priority="throughput")
    world.prepare_all(engine)
    assert [fail.request.key for fail in world.fails[drops:]] == [request.key]


def end_one(world: World, engine: FakeEngine, tokens: int = 100) -> Request:
    """Let the oldest running request end after so many tokens; return it."""
    key = min(engine.running)
    world.advance(key, tokens)
    world.end(engine, key)
    world.prepare_all(engine)
    return world.requests[key]


@pytest.mark.parametrize("level", range(1, 4), ids=LEVELS[1:])
def test_an_account_that_was_served_much_is_not_passed_for_ever_by_fresh_names(level: int) -> None:
    world = World(bounds=QueueBounds(4))
    engine = world.start_engine(sequences=1)

    def fresh(number: int) -> Path:
        path: list[object] = [1, 10, "", ""]
        path[level] = number + 100 if level == 1 else f"fresh {number}"
        return path[0], path[1], path[2], path[3]  # type: ignore[return-value]  # each as Path has it

    world.prepare(engine, submit(world, (1, 10, "", "")).key)
    end_one(world, engine, tokens=1_000_000)
    for number in range(6):
        submit(world, fresh(number))
        world.prepare_all(engine)
    passed = submit(world, (1, 10, "", ""))
    assert passed.key in world.scheduler.backlog.held_back
    came, age = 6, world.scheduler.waiting.age_after
    while passed.key in world.scheduler.backlog.held_back:
        submit(world, fresh(came))
        came += 1
        end_one(world, engine)
        world.pass_time(1.0)
        assert world.now <= age + 2.0


def test_throughput_work_that_is_held_back_is_not_passed_for_ever_by_urgent_work() -> None:
    world, engine = flooded(limit=4)
    held = submit(world, (1, 10, "", "other"), priority="throughput")
    age = world.scheduler.waiting.age_after
    while held.key in world.scheduler.backlog.held_back:
        submit(world, FLOOD)
        end_one(world, engine)
        world.pass_time(1.0)
        assert world.now <= age + 2.0


def random_path(random: Random) -> Path:
    """Return one of three users' accounts, the first names more often than the others."""
    return (
        random.choice((1, 1, 1, 2, 3)),
        random.choice((10, 10, 11)),
        random.choice(("", "", "key")),
        random.choice(("flood", "flood", "flood", "mail", f"fresh {random.randrange(1000)}")),
    )


def check_places(world: World, limit: int) -> None:
    """Check that the limit holds, and that no request held back lacks a place that a sibling of its account owes it."""
    backlog = world.scheduler.backlog
    assert len(backlog.counted) <= limit
    levels = [places(world, level) for level in range(4)]
    for request in backlog.held_back.values():
        level = next((level for level in range(4) if not levels[level][request.path[: level + 1]]), None)
        if level is not None:
            siblings = {path: count for path, count in levels[level].items() if path[:-1] == request.path[:level]}
            share = limit / len({each.path[0] for each in [*backlog.counted.values(), *backlog.held_back.values()]})
            assert all(count < 2 or (level == 0 and count <= share) for count in siblings.values())


@pytest.mark.parametrize("seed", range(10))
def test_on_a_random_walk_whoever_lacks_a_place_has_one_as_soon_as_a_sibling_has_two(seed: int) -> None:
    random = Random(seed)
    limit = random.randint(1, 12)
    world = World(bounds=QueueBounds(limit))
    engine = world.start_engine(sequences=random.randint(0, 3))
    for _ in range(400):
        event = random.random()
        if event < 0.5:
            submit(world, random_path(random))
        elif event < 0.65 and engine.running - engine.to_park:
            key = random.choice(sorted(engine.running - engine.to_park))
            world.advance(key, random.randint(1, 200))
            world.end(engine, key)
        elif event < 0.75 and world.scheduler.requests:
            world.cancel(random.choice(sorted(world.scheduler.requests)))
        elif event < 0.95 and engine.preparing:
            world.prepare(engine, random.choice(sorted(engine.preparing)))
        for key in sorted(engine.to_park):
            world.set_aside(engine, key)
        for key in engine.halted & engine.running:
            world.end(engine, key)
        world.pass_time(random.choice((0.0, 0.1, 5.0)))
        check_places(world, limit)


@pytest.mark.parametrize("overflow", ["block", "drop_newest"])
@pytest.mark.parametrize("seed", range(10))
def test_between_users_the_places_are_the_same_whatever_processes_and_labels_they_use(
    overflow: Overflow, seed: int
) -> None:
    random, limit = Random(seed), 8
    worlds = [World(bounds=QueueBounds(limit, overflow=overflow)) for _ in range(2)]
    # One sequence: no user has several leases, so nothing is parked.
    engines = [world.start_engine(sequences=1) for world in worlds]
    for _ in range(300):
        path = random_path(random)
        ends = random.random() < 0.3
        for world, engine, own in zip(worlds, engines, (path, (path[0], 1, "", "")), strict=True):
            if ends and engine.running:
                end_one(world, engine)
            else:
                submit(world, own)
                world.prepare_all(engine)
        counts = [places(world, 0) for world in worlds]
        assert counts[0] == counts[1]
