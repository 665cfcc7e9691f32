"""Fairness between users, processes and labels: bounds on service and waits, whatever the lengths and weights are."""

from collections import Counter, defaultdict
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.scheduler.account import TURN
from car_daemon.scheduler.backlog import Overflow, QueueBounds
from car_daemon.scheduler.request import Request, State
from car_protocol.infer import Priority
from tests.daemon.scheduler.fakes import PROMPT_TOKENS, FakeEngine, World

MOST_TOKENS = 200
WIDE = QueueBounds(limit=1000)
# A user, its process, a tenant and a label.
Sibling = tuple[int, int, str, str]


class ClosedLoop:
    """Siblings that always have requests waiting for the same engine, and the tokens that each was served."""

    def __init__(self, siblings: list[Sibling], *, sequences: int, weights: dict[int, float] | None = None) -> None:
        self.world = World(bounds=WIDE)
        self.world.scheduler.set_weights(weights or {})
        self.siblings = siblings
        self.served: defaultdict[Sibling, float] = defaultdict(float)
        self.owners: dict[int, Sibling] = {}
        self.releases: Counter[Sibling] = Counter()  # leases that ended
        self.engine = self.world.start_engine(sequences=sequences)
        self.fill()

    def fill(self, priority: Priority = "latency_critical") -> None:
        """Let every sibling have two requests waiting."""
        waiting = Counter(self.owners[key] for key in self.world.scheduler.waiting.requests)
        for sibling in self.siblings:
            for _ in range(2 - waiting[sibling]):
                self.submit(sibling, priority)

    def submit(self, sibling: Sibling, priority: Priority = "latency_critical") -> Request:
        """Let a sibling submit one request."""
        uid, process, tenant, label = sibling
        request = self.world.submit(client=(uid, label), process=process, tenant=tenant, priority=priority)
        self.owners[request.key] = sibling
        self.world.prepare(self.engine, request.key)
        return request

    def write(self, tokens: int) -> None:
        """Let every running request write so many tokens, as the steps of an engine do."""
        for key in sorted(self.engine.running):
            self.world.advance(key, tokens)

    def turn(self, random: Random, tokens: int) -> None:
        """Let one running request end after so many tokens; requests that were sent `Park` are parked first."""
        for key in sorted(self.engine.to_park):
            self.world.set_aside(self.engine, key)
        key = random.choice(sorted(self.engine.running))
        self.world.advance(key, tokens)
        sibling = self.owners[key]
        self.served[sibling] += PROMPT_TOKENS + self.world.requests[key].produced
        self.releases[sibling] += 1
        self.world.end(self.engine, key)
        self.fill()


LENGTHS = st.lists(st.integers(1, MOST_TOKENS), min_size=3, max_size=3)
SETTINGS = settings(max_examples=25)


def siblings_at(level: int) -> list[Sibling]:
    """Return three siblings that differ at one level: users, processes, tenants or labels."""
    return [
        (7 + (level == 0) * n, 70 + (level == 1) * n, f"key {(level == 2) * n}", f"label {(level == 3) * n}")
        for n in range(3)
    ]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@SETTINGS
@given(LENGTHS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_service_of_siblings_differs_by_the_leases_held_at_once_and_one_more(
    level: int, lengths: list[int], sequences: int, random: Random
) -> None:
    loop = ClosedLoop(siblings_at(level), sequences=sequences)
    for _ in range(60):
        loop.turn(random, random.choice(lengths))
        for one, other in combinations(loop.siblings, 2):
            difference = abs(loop.served[one] - loop.served[other])
            assert difference <= (sequences + 1) * (PROMPT_TOKENS + MOST_TOKENS)


@SETTINGS
@given(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.integers(1, 3), st.randoms(use_true_random=False))
def test_users_are_served_by_their_weights(weights: list[int], sequences: int, random: Random) -> None:
    users = siblings_at(0)
    weight = {sibling[0]: float(each) for sibling, each in zip(users, weights, strict=True)}
    loop = ClosedLoop(users, sequences=sequences, weights=weight)
    for _ in range(120):
        loop.turn(random, random.randint(1, MOST_TOKENS))
        for one, other in combinations(users, 2):
            difference = abs(loop.served[one] / weight[one[0]] - loop.served[other] / weight[other[0]])
            assert difference <= (sequences + 1) * (PROMPT_TOKENS + MOST_TOKENS)


@SETTINGS
@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_fresh_labels_and_processes_gain_nothing_from_another_user(sequences: int, random: Random) -> None:
    honest: Sibling = (2, 1000, "", "always the same")
    loop = ClosedLoop([honest], sequences=sequences)
    for number in range(60):
        for each in range(3):
            loop.submit((1, 3 * number + each, f"key {number}", f"fresh {number}"))
        loop.turn(random, random.randint(1, MOST_TOKENS))
        cheated = sum(tokens for sibling, tokens in loop.served.items() if sibling[0] == 1)
        assert cheated - loop.served[honest] <= (sequences + 1) * (PROMPT_TOKENS + MOST_TOKENS)


@SETTINGS
@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_fresh_labels_of_a_key_and_the_name_of_another_key_gain_nothing_from_that_key(
    sequences: int, random: Random
) -> None:
    honest: Sibling = (1, 70, "obsidian", "OpenAI")
    loop = ClosedLoop([honest], sequences=sequences)
    for number in range(60):
        for label in (f"fresh {number}", "obsidian", "OpenAI"):
            loop.submit((1, 70, "default", label))
        loop.turn(random, random.randint(1, MOST_TOKENS))
        cheated = sum(tokens for sibling, tokens in loop.served.items() if sibling[2] == "default")
        assert cheated - loop.served[honest] <= (sequences + 1) * (PROMPT_TOKENS + MOST_TOKENS)


@SETTINGS
@given(st.integers(1, 20), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_newcomer_is_served_after_one_release_of_each_user(flood: int, sequences: int, random: Random) -> None:
    loop = ClosedLoop([(1, 1, "", str(label)) for label in range(flood)] + [(2, 2, "", "second")], sequences=sequences)
    for _ in range(30):
        loop.turn(random, random.randint(1, MOST_TOKENS))
    newcomer = loop.submit((3, 3, "", "newcomer"))
    before = loop.releases.total()
    while newcomer.state is State.WAITING:
        loop.write(MOST_TOKENS)
        loop.turn(random, MOST_TOKENS)
    assert loop.releases.total() - before <= 2


def test_a_user_that_waits_for_a_slow_model_saves_up_nothing_for_another() -> None:
    world = World(bounds=WIDE)
    slow, fast = world.start_engine("slow", sequences=1), world.start_engine("fast", sequences=1)
    world.run_one(slow, client=(1, ""))
    waits = world.run_one(slow, client=(1, ""))
    for _ in range(50):
        for key in sorted(fast.running):
            world.advance(key, 100)
            world.end(fast, key)
        world.run_one(fast, client=(2, ""))
    for client in ((2, ""), (1, ""), (1, ""), (2, ""), (3, "")):
        world.run_one(fast, client=client)
    order = []
    for _ in range(6):
        (key,) = fast.running
        order.append(world.requests[key].spec.client[0])
        world.advance(key, 100)
        world.end(fast, key)
    assert order[:1] == [2], "it ran before the others came"
    assert order.index(3) <= 3
    assert order[1:4].count(1) == 1
    assert waits.state is State.WAITING


def test_a_user_that_used_an_idle_model_does_not_pay_for_it_at_another() -> None:
    world = World(bounds=WIDE)
    slow, fast = world.start_engine("slow", sequences=1), world.start_engine("fast", sequences=1)
    for _ in range(50):
        world.end(fast, advanced(world, world.run_one(fast, client=(2, ""))))
    for client in ((1, ""), (1, ""), (1, ""), (2, "")):
        world.run_one(slow, client=client)
    world.end(slow, advanced(world, world.requests[51]))
    assert world.requests[54].state is State.RUNNING


def advanced(world: World, request: Request) -> int:
    world.advance(request.key, 100)
    return request.key


def test_under_the_limit_of_the_machine_a_user_of_many_models_gets_no_more_than_a_user_of_one() -> None:
    world = World(machine_limit=1, bounds=WIDE)
    engines = {model: world.start_engine(model, sequences=2) for model in "abcde"}
    for model in "abcde":
        for _ in range(20):
            world.run_one(engines[model], client=(1, ""))
    for _ in range(20):
        world.run_one(engines["a"], client=(2, ""))
    served: Counter[int] = Counter()
    for _ in range(24):
        (engine,) = (each for each in engines.values() if each.running)
        (key,) = engine.running
        served[world.requests[key].spec.client[0]] += 1
        world.advance(key, 100)
        world.end(engine, key)
    assert abs(served[1] - served[2]) <= 2


def test_naming_devices_gains_nothing() -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=1, device="gpu0")
    for device in (None, "gpu", "gpu0"):
        for _ in range(10):
            world.prepare(engine, world.submit(client=(1, ""), device=device).key)
    for _ in range(10):
        world.run_one(engine, client=(2, ""))
    served: Counter[int] = Counter()
    for _ in range(16):
        (key,) = engine.running
        served[world.requests[key].spec.client[0]] += 1
        world.advance(key, 100)
        world.end(engine, key)
    assert abs(served[1] - served[2]) <= 2


def test_a_fresh_label_parks_no_work_of_another_user_with_few_leases() -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=4)
    for _ in range(2):
        world.run_one(engine, client=(2, "honest"))
    for number in range(10):
        world.run_one(engine, client=(1, f"fresh {number}"))
    assert engine.to_park == set()


def test_a_fresh_label_is_remembered_while_it_matters_and_no_longer() -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=1)
    for number in range(3000):
        world.run_one(engine, client=(1, f"fresh {number}"))
        if number:
            world.end(engine, min(engine.running))
    (process,) = world.scheduler.charging.overall.root.children[1].children.values()
    (tenant,) = process.children.values()
    assert len(tenant.children) < 1100
    world.end(engine, min(engine.running))
    assert not world.scheduler.charging.overall.root.children


# Places in the queue.


def full(world: World, engine: FakeEngine, uid: int, count: int) -> None:
    for _ in range(count):
        world.prepare_all(engine)
        world.submit(client=(uid, ""), process=uid)
    world.prepare_all(engine)


def counted(world: World) -> Counter[int]:
    backlog = world.scheduler.backlog
    return Counter(r.spec.client[0] for r in world.scheduler.requests.values() if r.key in backlog.counted)


def test_a_user_without_a_place_takes_the_newest_of_the_user_above_its_share() -> None:
    world = World(bounds=QueueBounds(limit=4))
    engine = world.start_engine(sequences=1)
    full(world, engine, 1, 5)
    newest = world.requests[5]
    newcomer = world.submit(client=(2, ""))
    assert (newest.state, newest.key in world.scheduler.backlog.held_back) == (State.ACCEPTED, True)
    assert counted(world) == {1: 3, 2: 1}
    world.prepare_all(engine)
    assert newcomer.state is State.WAITING
    world.advance(1, TURN)
    world.end(engine, 1)
    assert engine.running == {newcomer.key}
    world.prepare_all(engine)
    assert newest.state is State.WAITING


def test_requests_held_back_enter_by_user_and_not_by_arrival() -> None:
    world = World(bounds=QueueBounds(limit=2))
    engine = world.start_engine(sequences=1)
    full(world, engine, 1, 20)
    mine = [world.submit(client=(2, "")).key for _ in range(2)]
    world.prepare_all(engine)
    for _ in range(3):
        world.end(engine, min(engine.running))
        world.prepare_all(engine)
    assert all(world.requests[key].state is not State.ACCEPTED for key in mine)


def test_a_stuck_model_leaves_places_to_an_idle_one_of_the_same_user() -> None:
    world = World(bounds=QueueBounds(limit=8))
    stuck, idle = world.start_engine("stuck", sequences=1), world.start_engine("idle", sequences=2)
    for _ in range(30):
        world.submit("stuck", client=(1, ""))
        world.prepare_all(stuck)
    keys = [world.submit("idle", client=(1, "")).key for _ in range(6)]
    for _ in range(6):
        world.prepare_all(idle)
        for key in sorted(idle.running):
            world.end(idle, key)
    assert [world.endings[key] for key in keys] == [["completed"]] * 6


def test_where_more_users_wait_than_there_are_places_they_take_turns() -> None:
    world = World(bounds=QueueBounds(limit=2))
    engine = world.start_engine(sequences=1)
    for _ in range(3):
        for uid in range(6):
            world.submit(client=(uid, ""))
            world.prepare_all(engine)
    order = []
    while engine.running:
        (key,) = engine.running
        order.append(world.requests[key].spec.client[0])
        world.advance(key, 100)
        world.end(engine, key)
        world.prepare_all(engine)
    assert len(order) == 18
    assert max(Counter(order[:12]).values()) <= 3


def test_under_drop_newest_a_user_above_its_share_loses_its_newest_request_to_another_user() -> None:
    world = World(bounds=QueueBounds(limit=3, overflow="drop_newest"))
    engine = world.start_engine(sequences=1)
    full(world, engine, 1, 4)
    world.submit(client=(1, ""), process=1)
    assert world.endings[5] == ["overloaded"]
    world.prepare(engine, world.submit(client=(2, "")).key)
    assert world.endings[4] == ["overloaded"]
    assert world.fails[-1].data["why"] == "above its share"
    assert (world.fails[-1].data["user_queued"], world.fails[-1].data["user_share"]) == (2, 1)


def test_drop_oldest_drops_nothing_of_another_user_within_its_share() -> None:
    world = World(bounds=QueueBounds(limit=2, overflow="drop_oldest"))
    engine = world.start_engine(sequences=1)
    full(world, engine, 1, 2)
    full(world, engine, 2, 1)
    world.prepare(engine, world.submit(client=(2, ""), process=2).key)
    assert (world.endings[2], world.endings[3]) == ([], ["overloaded"])


def test_weights_share_the_places() -> None:
    world = World(bounds=QueueBounds(limit=6, overflow="drop_newest"))
    world.scheduler.set_weights({1: 2.0})
    for uid in (1, 1, 2, 2, 2, 2):
        world.submit(client=(uid, ""))
    fail = world.submit(client=(1, ""))
    assert world.endings[fail.key] == ["overloaded"]
    assert world.fails[-1].data["user_share"] == 4


@pytest.mark.parametrize("overflow", ["block", "drop_newest", "drop_oldest"])
@pytest.mark.parametrize("client", [(1, ""), (1, "another label"), (2, "")])
def test_a_full_queue_refuses_a_request_that_may_not_wait_whoever_filled_it(
    overflow: Overflow, client: tuple[int, str]
) -> None:
    world = World(bounds=QueueBounds(limit=2, overflow=overflow))
    engine = world.start_engine(sequences=1)
    full(world, engine, 1, 3)
    refused = world.submit(client=client, queue=False)
    world.prepare_all(engine)
    assert [fail.request.key for fail in world.fails] == [refused.key]
    assert counted(world) == {1: 2}


def test_weights_are_changed_while_requests_wait() -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=1)
    for uid in (1, 2) * 20:
        world.run_one(engine, client=(uid, ""))
    world.scheduler.set_weights({1: 3.0})
    served: Counter[int] = Counter()
    for _ in range(20):
        (key,) = engine.running
        served[world.requests[key].spec.client[0]] += 1
        world.advance(key, 100)
        world.end(engine, key)
    assert 14 <= served[1] <= 16


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("prompt", [10_000, 100])
def test_the_refund_of_a_long_prompt_gives_no_turns_ahead_of_other_users(prompt: int, cancelled: bool) -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=2)
    flood, honest = (1, "flood"), (2, "honest")

    def end(key: int) -> None:
        world.advance(key, TURN)
        world.end(engine, key)

    long = world.submit(client=flood)
    world.prepare(engine, long.key, tokens=prompt)
    for _ in range(40):
        world.run_one(engine, client=flood)
    # They are served after the charge for the long prompt, so the clock passes it.
    for _ in range(4):
        end(max(engine.running))
    if cancelled:
        world.cancel(long.key)
        world.end(engine, long.key)
    else:
        world.scheduler.advanced(long.key, prompt, 0, cached=prompt)
    waits = []
    for _ in range(5):
        waiter = world.run_one(engine, client=honest)
        waits.append(0)
        while waiter.key not in engine.running:
            end(min(engine.running - engine.to_park))
            for key in sorted(engine.to_park):
                world.set_aside(engine, key)
            waits[-1] += 1
        end(waiter.key)
    # The next charges of the flood may be less by the advance of each lease and of two more.
    assert max(waits) <= 5


@pytest.mark.parametrize("expires", [False, True])
def test_a_user_whose_leases_end_before_a_token_gets_no_more_leases_than_another(*, expires: bool) -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=1)
    leases = Counter[int]()
    started = world.now
    for number in range(20):
        for user in (1, 2):
            world.run_one(engine, client=(user, ""), timeout=number + 1.0 if user == 1 else None)
    for _ in range(20):
        (key,) = engine.running
        user = world.requests[key].spec.client[0]
        leases[user] += 1
        if user == 1 and expires:
            world.now = started + leases[1] + 0.01
            world.do(world.scheduler.expire(world.now))
            assert world.endings[key] == ["deadline_exceeded"]
        elif user == 1:
            world.cancel(key)
        else:
            world.advance(key, TURN)
        world.end(engine, key)
    assert leases[1] <= leases[2] + 1


@pytest.mark.parametrize(("had", "leases_for_one"), [(16, 2), (32, 1)])
def test_a_user_that_cancels_within_a_turn_pays_twice_for_the_tokens_that_it_had(had: int, leases_for_one: int) -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=1)
    leases = Counter[int]()
    for _ in range(40):
        for user in (1, 2):
            world.run_one(engine, client=(user, ""))
    for _ in range(30):
        (key,) = engine.running
        user = world.requests[key].spec.client[0]
        leases[user] += 1
        if user == 1:
            world.scheduler.advanced(key, 0, had)
            world.cancel(key)
        else:
            world.scheduler.advanced(key, 0, TURN)
        world.end(engine, key)
    # At the begin and at the end either may be a turn ahead.
    assert abs(leases[1] - leases_for_one * leases[2]) <= 2 * leases_for_one
