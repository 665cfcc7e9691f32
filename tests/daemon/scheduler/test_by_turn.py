"""Children of about equal virtual time are served by turn, and the order of what waits is foretold as it will be."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from car_daemon.scheduler.fair_tree import ADVANCE, Account, Path
from car_daemon.scheduler.lane import Lane, LaneTarget
from tests.daemon.scheduler.fakes import World
from tests.daemon.scheduler.test_fairness import WIDE

PATHS: list[Path] = [
    (user, process, tenant, label)
    for user in (1, 2, 3)
    for process in (1, 2)
    for tenant in ("", "key")
    for label in ("a", "b")
]
ANSWER_TOKENS = 48


class Queue:
    """A lane whose requests are charged when they get a lease."""

    def __init__(self, weights: dict[int, float]) -> None:
        self.lane = Lane(0, LaneTarget("m", None, None), Account(None, ""))
        self.weights = weights
        self.costs: dict[int, float] = {}

    def add(self, path: Path, cost: float) -> None:
        """Add a request that costs so many tokens."""
        self.costs[len(self.costs)] = cost
        self.lane.add(len(self.costs) - 1, path, self.weights.get(path[0], 1.0))

    def serve(self) -> int:
        """Give the first request a lease, whose tokens are charged at once."""
        key = self.lane.first()
        self.lane.take(key).account.charge(self.costs[key])
        return key


@settings(derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.integers(1, 300), st.sampled_from("awwsl")), max_size=60),
    st.dictionaries(st.sampled_from((1, 2, 3)), st.sampled_from((0.5, 2.0, 4.0)), max_size=3),
)
def test_the_order_is_foretold_whatever_came_left_and_was_charged_before(
    steps: list[tuple[Path, int, str]], weights: dict[int, float]
) -> None:
    queue = Queue(weights)
    for path, tokens, step in steps:
        if step == "s" and len(queue.lane):
            queue.serve()
        elif step == "l" and len(queue.lane):
            queue.lane.remove(sorted(queue.lane.leaves)[tokens % len(queue.lane)])
        else:
            queue.add(path, tokens)
    foretold = list(queue.lane.order(queue.costs.__getitem__))
    assert foretold == [queue.serve() for _ in foretold]
    assert not len(queue.lane)


def test_the_order_of_very_many_labels_is_foretold_too() -> None:
    random, queue = Random(1), Queue({})
    for _ in range(3):
        for label in range(200):
            queue.add((1, 1, "", str(label)), random.randint(10, 100))
    for _ in range(100):
        queue.serve()
    foretold = list(queue.lane.order(queue.costs.__getitem__))
    assert foretold == [queue.serve() for _ in foretold]


def leases_waited(prompts: list[int], sequences: int, random: Random) -> list[int]:
    """Return the leases that others got while each request waited; users with such prompts send one after the other."""
    world, came_at = World(bounds=WIDE), dict[int, int]()
    engine, leases = world.start_engine(sequences=sequences), 0
    owners: dict[int, int] = {}
    waited: list[int] = []

    def submit(user: int) -> None:
        request = world.run_one(engine, client=(0, str(user)))
        owners[request.key], came_at[request.key] = user, leases

    for user in range(len(prompts)):
        submit(user)
    started: set[int] = set()
    for _ in range(8 * len(prompts)):
        for key in sorted(engine.running - started):
            waited.append(leases - came_at[key])
            started.add(key)
            leases += 1
        key = random.choice(sorted(engine.running))
        world.advance(key, ANSWER_TOKENS + prompts[owners[key]] + random.randint(-2, 2))
        world.end(engine, key)
        submit(owners[key])
    return waited


@pytest.mark.parametrize("sequences", [1, 4])
def test_users_with_answers_of_about_equal_length_wait_for_no_more_leases_than_others_came_before(
    sequences: int,
) -> None:
    waited = leases_waited([20, *([0] * 11)], sequences, Random(3))
    assert max(waited) <= 12


def test_a_user_with_longer_answers_waits_until_the_others_had_as_much_but_for_a_lease() -> None:
    world = World(bounds=WIDE)
    engine = world.start_engine(sequences=1)
    order = []
    long = [world.run_one(engine, client=(0, "long")) for _ in range(2)]
    short = [world.run_one(engine, client=(0, "short")) for _ in range(8)]
    owners = {request.key: request.spec.client[1] for request in (*long, *short)}
    while engine.running:
        (key,) = engine.running
        order.append(owners[key])
        world.advance(key, 4 * ADVANCE if owners[key] == "long" else ADVANCE)
        world.end(engine, key)
    assert order[:5] == ["long", "short", "short", "short", "long"]
