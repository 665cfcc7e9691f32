"""Fair turns between sources of frames, and the time until other work runs."""

import asyncio

from car_daemon.connections.fair_queue import FairQueue
from tests.pace import SetClock


class Frames:
    """Has a number of frames that each take some time."""

    def __init__(self, name: str, frames: int, clock: SetClock, log: list[str], seconds: float = 0.0) -> None:
        self.name = name
        self.frames = frames
        self.clock = clock
        self.log = log
        self.seconds = seconds

    def __call__(self) -> bool:
        self.frames -= 1
        self.clock.now += self.seconds
        self.log.append(self.name)
        return self.frames > 0


def played(*sources: tuple[str, int], seconds: float = 0.0, turns: int = 3, owners: str = "") -> list[str]:
    """Return the names of the sources in the order of their frames, with a bar after every turn of the loop.

    Each source has an owner of its own, or the one that `owners` has at its place.
    """
    log: list[str] = []
    clock = SetClock()

    async def play() -> None:
        queue = FairQueue(clock)
        for place, (name, frames) in enumerate(sources):
            queue.join(Frames(name, frames, clock, log, seconds), owners[place] if owners else place)
        for _ in range(turns):
            await asyncio.sleep(0)
            log.append("|")

    asyncio.run(play())
    return log


def test_sources_take_turns_frame_by_frame() -> None:
    assert played(("a", 3), ("b", 1), ("c", 2), turns=1) == ["a", "b", "c", "a", "c", "a", "|"]


def test_owners_take_turns_and_the_sources_of_each() -> None:
    order = played(("a", 2), ("b", 1), ("c", 1), ("d", 3), turns=1, owners="1112")
    assert order == ["a", "d", "b", "d", "c", "d", "a", "|"]


def test_a_turn_of_the_loop_ends_after_two_milliseconds() -> None:
    assert played(("a", 4), seconds=0.001) == ["a", "a", "|", "a", "a", "|", "|"]


def test_one_frame_that_takes_long_is_a_turn_of_its_own() -> None:
    assert played(("a", 2), ("b", 1), seconds=1.0) == ["a", "|", "b", "|", "a", "|"]


def test_a_source_that_is_done_may_join_again() -> None:
    log: list[str] = []
    clock = SetClock()

    async def play() -> None:
        queue = FairQueue(clock)
        for _ in range(2):
            queue.join(Frames("a", 1, clock, log), 1)
            await asyncio.sleep(0)

    asyncio.run(play())
    assert log == ["a", "a"]


async def test_a_queue_shows_how_many_sources_have_frames() -> None:
    queue = FairQueue()
    queue.join(Frames("a", 1, SetClock(), []), 1)
    assert repr(queue) == "<FairQueue sources=1>"
    await asyncio.sleep(0)
    assert repr(queue) == "<FairQueue sources=0>"
