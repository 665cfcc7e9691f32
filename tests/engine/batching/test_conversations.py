"""Conversations of more users than sequences: the scheduler and an engine together compute hardly a token twice."""

from array import array
from collections import deque
from collections.abc import Iterator

import pytest

from car_base.ipc.frames import Run
from car_base.ipc.types import NO_ADAPTERS
from car_daemon.scheduler.request import Prompt
from car_engine.batching.costs import StepCosts
from car_engine.batching.reuse.expected import cells_of
from tests.daemon.scheduler.fakes import World
from tests.daemon.scheduler.test_fairness import WIDE
from tests.engine.batching.test_prefix_cache import CONTEXT, prefilled
from tests.engine.fakes import FakeContext, FakeEngine, run_command

TURNS, ANSWER_TOKENS = 4, 12
SYSTEM = [1 + place % 24 for place in range(30)]


def question(user: int, turn: int) -> list[int]:
    """Return what a user sends after the last answer: no question of another user begins like it."""
    return [1 + user, 1 + turn, *(1 + (user * 5 + turn * 7 + place) % 24 for place in range(12 + user % 5))]


class House:
    """Users that hold a conversation each with one engine through a scheduler; a later turn follows after some ends.

    Each sends the whole history, and `waited` has the leases that others got while a request waited.
    """

    def __init__(self, users: int, engine: FakeEngine, pauses: list[int]) -> None:
        self.engine, self.world = engine, World(bounds=WIDE)
        self.leases = self.world.start_engine(sequences=len(engine.context.cells))
        self.histories = {user: list(SYSTEM) for user in range(users)}
        self.waited: list[int] = []
        self._pauses = pauses
        self._owners: dict[int, int] = {}
        self._came_at: dict[int, int] = {}

    def hold(self) -> None:
        """Let all conversations come to their ends."""
        conversations = {user: self._turns(user) for user in self.histories}
        pausing = deque((0, user) for user in conversations)
        running: set[int] = set()
        while pausing or self._owners:
            for _ in range(len(pausing)):
                ends, user = pausing.popleft()
                if ends and self._owners:
                    pausing.append((ends, user))
                else:
                    next(conversations[user], None)
            begun = sorted(self.leases.running - running)
            running |= set(begun)
            self.engine.turn(*(self._begun(key) for key in begun))
            for key in sorted(key for key in running if self.engine.ends(key)):
                running.remove(key)
                pausing = deque((max(0, ends - 1), user) for ends, user in pausing)
                pausing.append((self._pauses[key % len(self._pauses)], self._ended(key)))

    def _turns(self, user: int) -> Iterator[None]:
        history = self.histories[user]
        for turn in range(TURNS):
            history += question(user, turn)
            request = self.world.submit(client=(0, str(user)))
            self._owners[request.key], self._came_at[request.key] = user, len(self.waited)
            tokens = array("i", history).tobytes()
            self.engine.commands.expected.note(request.key, tokens, cells_of("me", NO_ADAPTERS))
            self.leases.preparing.remove(request.key)
            self.world.prepared_keys.add(request.key)
            self.world.do(self.world.scheduler.prepared(request.key, Prompt(len(history), 8, ()), 0.0))
            yield

    def _begun(self, key: int) -> Run:
        self.engine.commands.expected.drop(key)
        self.waited.append(len(self.waited) - self._came_at[key])
        return run_command(key, self.histories[self._owners[key]], ANSWER_TOKENS, namespace="me")

    def _ended(self, key: int) -> int:
        """Report the end of a request, and the waiting ones that idle cells spare most; return its user."""
        user = self._owners.pop(key)
        history, (end,) = self.histories[user], self.engine.ends(key)
        if self.engine.resident:
            self.world.scheduler.resident(self.leases.number, self.engine.resident.pop())
        self.world.scheduler.advanced(key, len(history), ANSWER_TOKENS, end.usage.cached_tokens)
        history += self.engine.tokens(key)
        self.world.end(self.leases, key)
        return user


def held(users: int, sequences: int, saved_bytes: int, pauses: list[int]) -> House:
    """Return a house after its conversations; a step takes as long on the fake clock, so all places are alike."""
    context = FakeContext(sequences, CONTEXT, batch_tokens=64)
    costs = StepCosts({1: 0.003, 64: 0.003}, {1: 0.003, 64: 0.003})
    house = House(users, FakeEngine(context, saved_bytes=saved_bytes, costs=costs), pauses)
    house.hold()
    return house


def new_tokens(users: int) -> int:
    """Return the prompt tokens of all turns that no turn before has."""
    return len(SYSTEM) + sum(len(question(user, turn)) for user in range(users) for turn in range(TURNS))


@pytest.mark.parametrize("sequences", [1, 4, 8])
def test_twelve_users_compute_hardly_a_token_twice_and_none_waits_for_longer_than_by_arrival(sequences: int) -> None:
    house = held(12, sequences, 100_000, [0])
    assert prefilled(house.engine) <= 1.1 * new_tokens(12)
    assert max(house.waited) <= 12


def test_of_users_that_pause_for_different_times_mostly_the_cells_of_those_that_come_last_are_lost() -> None:
    house = held(5, 4, 0, [1, 1, 1, 8, 2, 2, 3])
    assert prefilled(house.engine) <= 1.6 * new_tokens(5), "1.77 times where cells lose nothing of their worth with age"
