"""Host memory for cells: parked requests have precedence, prefixes replace each other."""

from car_engine.batching.prefix import Prefix, prefix_of
from car_engine.batching.saved_cells import SavedCells, SavedPrefix


def saved(first: int, size: int, tokens: int = 20, namespace: str = "me", lowest: int = 0) -> SavedPrefix:
    return SavedPrefix(prefix(first, tokens, namespace), memoryview(bytes(size)), lowest)


def prefix(first: int, tokens: int = 20, namespace: str = "me") -> Prefix:
    return prefix_of([first, *range(100, 99 + tokens)], namespace)


def room_of(limit: int) -> SavedCells:
    """Return memory for cells that can be cut anywhere."""
    return SavedCells(limit, lambda _cells: 0)


def test_the_prefix_that_spares_most_is_found() -> None:
    room = room_of(100)
    short, long = saved(1, 10, tokens=20), saved(1, 10, tokens=40)
    room.keep(long)
    room.keep(saved(2, 10))
    room.keep(short)
    assert room.longest(prefix(1, 60)) == (40, long)
    assert room.longest(prefix(3)) == (0, None)


def test_saved_cells_that_cannot_be_cut_are_found_only_by_prompts_that_begin_with_all_of_them() -> None:
    room = SavedCells(100, lambda cells: cells - 4)
    begin, whole = saved(1, 10, tokens=20, lowest=16), saved(1, 10, tokens=40, lowest=36)
    room.keep(begin)
    room.keep(whole)
    assert room.longest(prefix(1, 39)) == (20, begin)
    assert room.longest(prefix(1, 40)) == (40, whole)
    assert room.longest(prefix(1, 19)) == (0, None)


def test_a_prefix_of_another_namespace_is_never_found() -> None:
    room = room_of(100)
    room.keep(saved(1, 10, namespace="other"))
    assert room.longest(prefix(1)) == (0, None)


def test_a_longer_prefix_takes_the_place_of_the_one_that_it_begins_with() -> None:
    room = room_of(100)
    room.keep(saved(1, 10, tokens=20))
    room.keep(saved(1, 30, tokens=40))
    assert room.bytes == 30


def test_the_prefix_used_longest_ago_makes_room() -> None:
    room = room_of(30)
    first, second, third = saved(1, 10), saved(2, 10), saved(3, 10)
    for each in (first, second, third):
        room.keep(each)
    room.touch(first)
    room.keep(saved(4, 15))
    assert room.longest(prefix(1))[1] is first
    assert (room.longest(prefix(2))[1], room.longest(prefix(3))[1], room.bytes) == (None, None, 25)


def test_a_parked_request_takes_the_room_of_prefixes_and_gives_it_back() -> None:
    room = room_of(30)
    room.keep(saved(1, 20))
    assert room.pin(15)
    assert (room.longest(prefix(1)), room.bytes) == ((0, None), 15)
    room.unpin(15)
    assert (room.pinned, room.bytes) == (0, 0)


def test_what_cannot_fit_is_not_kept() -> None:
    room = room_of(30)
    assert room.pin(20)
    assert not room.pin(11)
    room.keep(saved(1, 11))
    assert room.longest(prefix(1)) == (0, None)
    assert room.bytes == 20


def test_a_prefix_that_was_dropped_may_be_touched() -> None:
    room = room_of(10)
    gone = saved(1, 10)
    room.keep(gone)
    room.keep(saved(2, 10))
    room.touch(gone)
    assert room.longest(prefix(1)) == (0, None)
