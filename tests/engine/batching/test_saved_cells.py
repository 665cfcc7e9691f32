"""Host memory for cells and states: parked requests have precedence, prefixes replace each other."""

import pytest

from car_engine.batching.prefix import Checkpoint, Prefix, SavedPrefix, prefix_of
from car_engine.batching.reuse.index import Index, Memory
from car_engine.batching.saved_cells import SavedCells


def saved(first: int, size: int, tokens: int = 20, namespace: str = "me") -> SavedPrefix:
    return SavedPrefix(prefix(first, tokens, namespace), memoryview(bytes(size)), tokens)


def prefix(first: int, tokens: int = 20, namespace: str = "me") -> Prefix:
    return prefix_of([first, *range(100, 99 + tokens)], namespace)


class Room:
    """Host memory, and the marks that prompts find in it."""

    def __init__(self, limit: int, memory: Memory) -> None:
        self.index = Index(memory)
        self.saved = SavedCells(limit, self.index)

    def longest(self, prompt: Prefix) -> tuple[int, object]:
        """Return the most tokens that a prompt can reuse, and their cells."""
        marks = [(mark.tokens, mark.source) for mark in self.index.marks(prompt) if mark.tokens]
        return max(marks, key=lambda mark: mark[0], default=(0, None))


def room_of(limit: int, memory: Memory = Memory()) -> Room:  # noqa: B008 - immutable
    return Room(limit, memory)


ON_MARKS = pytest.mark.parametrize("memory", [Memory(states=True), Memory(windows=True)])


def test_the_prefix_that_spares_most_is_found() -> None:
    room = room_of(100)
    short, long = saved(1, 10, tokens=20), saved(1, 10, tokens=40)
    for each in (long, saved(2, 10), short):
        room.saved.keep(each)
    assert room.longest(prefix(1, 60)) == (40, long)
    assert room.longest(prefix(3)) == (0, None)


@ON_MARKS
def test_cells_that_cannot_be_cut_are_found_only_by_prompts_that_begin_with_all_of_them(memory: Memory) -> None:
    room = room_of(100, memory)
    begin, whole = saved(1, 10, tokens=20), saved(1, 10, tokens=40)
    room.saved.keep(begin)
    room.saved.keep(whole)
    assert room.longest(prefix(1, 39)) == (20, begin)
    assert room.longest(prefix(1, 40)) == (40, whole)
    assert room.longest(prefix(1, 19)) == (0, None)


@ON_MARKS
def test_a_checkpoint_serves_all_cells_that_begin_with_its_tokens_and_no_others(memory: Memory) -> None:
    room = room_of(1000, memory)
    whole = saved(1, 10, tokens=40)
    for each in (whole, saved(2, 10, tokens=40), Checkpoint(prefix(1, 30), memoryview(b"state"))):
        room.saved.keep(each)
    assert room.longest(prefix(1, 35)) == (30, whole)
    assert room.longest(prefix(1, 29)) == (0, None)
    assert room.longest(prefix(2, 35)) == (0, None)


@ON_MARKS
def test_a_prefix_takes_the_place_of_a_shorter_one_where_it_has_a_checkpoint_at_its_end(memory: Memory) -> None:
    room = room_of(1000, memory)
    for each in (saved(1, 10, tokens=20), saved(1, 10, tokens=30), Checkpoint(prefix(1, 20), memoryview(b"state"))):
        room.saved.keep(each)
    room.saved.keep(saved(1, 30, tokens=40))
    assert room.saved.bytes == 10 + (5 + 20 * 4) + 30
    assert room.longest(prefix(1, 25))[0] == 20


def test_a_prefix_of_another_namespace_is_never_found() -> None:
    room = room_of(100)
    room.saved.keep(saved(1, 10, namespace="other"))
    assert room.longest(prefix(1)) == (0, None)


def test_a_longer_prefix_takes_the_place_of_the_one_that_it_begins_with() -> None:
    room = room_of(100)
    room.saved.keep(saved(1, 10, tokens=20))
    room.saved.keep(saved(1, 30, tokens=40))
    assert room.saved.bytes == 30


def test_the_prefix_used_longest_ago_makes_room() -> None:
    room = room_of(30)
    first, second, third = saved(1, 10), saved(2, 10), saved(3, 10)
    for each in (first, second, third):
        room.saved.keep(each)
    room.saved.touch(first)
    room.saved.keep(saved(4, 15))
    assert room.longest(prefix(1))[1] is first
    assert (room.longest(prefix(2))[1], room.longest(prefix(3))[1], room.saved.bytes) == (None, None, 25)


STATE = memoryview(bytes(1000))


def checkpoint(first: int, tokens: int) -> Checkpoint:
    return Checkpoint(prefix(first, tokens), STATE)


def kept(room: Room, *checkpoints: Checkpoint) -> list[bool]:
    return [room.index.checkpoint(each.prefix) is each for each in checkpoints]


def test_of_checkpoints_the_one_goes_without_which_the_fewest_tokens_are_read_again() -> None:
    room = room_of(3 * 1400, Memory(states=True))
    system, turn, next_turn, edit = (checkpoint(1, tokens) for tokens in (60, 70, 90, 91))
    for each in (system, turn, next_turn, edit):
        room.saved.keep(each)
    assert kept(room, system, turn, next_turn, edit) == [True, True, True, False]


def test_a_checkpoint_that_nobody_uses_goes_in_the_end_whatever_it_costs() -> None:
    room = room_of(2 * 1400, Memory(states=True))
    system, *others = (checkpoint(first, 60 if first == 1 else 25) for first in range(1, 8))
    survived = []
    for each in (system, *others):
        room.saved.keep(each)
        survived += kept(room, system)
    assert survived == [*[True] * 6, False]


def test_cells_used_longest_ago_go_before_any_checkpoint_used_since() -> None:
    room = room_of(3 * 1400, Memory(states=True))
    mark = checkpoint(1, 60)
    room.saved.keep(saved(2, 2000))
    room.saved.keep(mark)
    room.saved.keep(saved(3, 2000))
    assert (kept(room, mark), room.longest(prefix(2))[0], room.longest(prefix(3))[0]) == ([True], 0, 20)


def test_a_parked_request_takes_the_room_of_prefixes_and_gives_it_back() -> None:
    room = room_of(30)
    room.saved.keep(saved(1, 20))
    assert room.saved.pin(15)
    assert (room.longest(prefix(1)), room.saved.bytes) == ((0, None), 15)
    room.saved.unpin(15)
    assert (room.saved.pinned, room.saved.bytes) == (0, 0)


def test_what_cannot_fit_is_not_kept() -> None:
    room = room_of(30)
    assert room.saved.pin(20)
    assert not room.saved.pin(11)
    room.saved.keep(saved(1, 11))
    assert room.longest(prefix(1)) == (0, None)
    assert room.saved.bytes == 20


def test_a_prefix_that_was_dropped_may_be_touched() -> None:
    room = room_of(10)
    gone = saved(1, 10)
    room.saved.keep(gone)
    room.saved.keep(saved(2, 10))
    room.saved.touch(gone)
    assert room.longest(prefix(1)) == (0, None)


@ON_MARKS
def test_short_memory_frees_cells_and_checkpoints_but_not_those_of_parked_requests(memory: Memory) -> None:
    room = room_of(1000, memory)
    assert room.saved.pin(7)
    for each in (saved(1, 10), Checkpoint(prefix(2), memoryview(b"state"))):
        room.saved.keep(each)
    room.saved.spare(True)
    assert (room.saved.bytes, room.saved.pinned) == (7, 7)
    assert room.longest(prefix(1)) == (0, None)
    room.saved.keep(saved(1, 10))
    assert room.saved.bytes == 7
    assert room.saved.pin(3)
    room.saved.spare(False)
    room.saved.keep(saved(1, 10))
    assert room.saved.bytes == 20


@ON_MARKS
def test_checkpoints_never_take_more_than_the_limit_with_their_tokens(memory: Memory) -> None:
    room = room_of(500, memory)
    for first in range(100):
        room.saved.keep(Checkpoint(prefix(first, 30), memoryview(b"state")))
        assert room.saved.bytes <= 500
    assert room.saved.bytes == 4 * (30 * 4 + 5)
