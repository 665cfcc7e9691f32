"""Three people behind one door: one with 320 requests in flight, in every way, and what the others notice of it.

The times are those of the simulation, which has no clock: each is a sum of stated seconds of steps.
"""

from collections.abc import Callable

import pytest

from benchmarks.steps_simulated import CHUNK_S, PROMPT_TOKEN_S, App, House, thinks, works
from car_client.carctl.bench.figures import spread

# Identities of people, whose requests all come from the door's process.
ANNA, BOB, CARL = range(2**32, 2**32 + 3)
REQUESTS = 320
SECONDS = 120.0
# A step that has begun is finished first: here the longest chunk of prompts, where nothing decodes.
RELEASE_S = CHUNK_S + 512 * PROMPT_TOKEN_S

WAYS: dict[str, Callable[[], App]] = {
    "fresh labels": lambda: App("anna", works(20, 0, 200), loops=REQUESTS, uid=ANNA, fresh=True),
    "fresh labels, short": lambda: App("anna", works(20, 0, 8), loops=REQUESTS, uid=ANNA, fresh=True),
    "connections": lambda: App("anna", works(20, 0, 200), loops=REQUESTS, uid=ANNA),
    "long answers": lambda: App("anna", works(30, 0, 3500), loops=REQUESTS, uid=ANNA),
    "long prompts": lambda: App("anna", works(3000, 0, 4), loops=REQUESTS, uid=ANNA),
    "decisions": lambda: App("anna", works(300, 0, 1), loops=REQUESTS, uid=ANNA),
    "cancels": lambda: App("anna", works(20, 0, 200), loops=REQUESTS, uid=ANNA, cancels_after=1.2),
}


def others() -> list[App]:
    return [App(name, works(60, 300, 50, 0.5), thinks(2.0), uid=uid) for name, uid in (("bob", BOB), ("carl", CARL))]


def chats(*flood: App) -> tuple[float, float, float]:
    """Return the worse 95th percentile of the others' waits for a sequence, for the first token and for the end."""
    apps = others()
    House([*apps, *flood], 1).run(SECONDS)
    assert all(len(app.leases) > 5 for app in apps)
    lease, first, end = (
        max(spread(seconds).p95 for seconds in each)
        for each in zip(*((app.leases, app.first, app.ends) for app in apps), strict=True)
    )
    return lease, first, end


@pytest.fixture(scope="module")
def alone() -> tuple[float, float, float]:
    """The same without a flood."""
    return chats()


@pytest.mark.parametrize("way", WAYS)
def test_the_others_wait_twice_as_long_as_alone_and_one_release(alone: tuple[float, float, float], way: str) -> None:
    lease, first, end = chats(WAYS[way]())
    assert lease <= 2 * alone[0] + RELEASE_S
    # Beside prompts that are being read a prompt has its share of each step, and is read more slowly.
    assert first <= 2 * alone[1] + RELEASE_S * (2 if way in ("long prompts", "decisions") else 1)
    assert end <= 2 * alone[2] + RELEASE_S


def test_people_with_work_without_end_get_the_same_and_by_their_weights() -> None:
    for loops, weights, share in ((320, {}, 1.0), (8, {ANNA: 3.0}, 3.0)):
        anna, bob = (
            App(str(uid), works(20, 0, 200, 0.0), loops=each, uid=uid) for uid, each in ((ANNA, loops), (BOB, 8))
        )
        House([anna, bob], 1, weights=weights).run(SECONDS)
        assert anna.tokens == pytest.approx(share * bob.tokens, rel=0.1)
