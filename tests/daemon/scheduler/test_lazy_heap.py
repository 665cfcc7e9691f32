"""A heap whose members change their ranks and leave."""

from hypothesis import given
from hypothesis import strategies as st

from car_daemon.scheduler.lazy_heap import LazyHeap


def test_an_empty_heap_has_no_first_member() -> None:
    heap: LazyHeap[int, int] = LazyHeap()
    assert (heap.first(), heap.least(), heap.pop(), len(heap)) == (None, None, None, 0)


def test_a_member_whose_rank_changes_is_found_by_the_new_one() -> None:
    heap: LazyHeap[int, str] = LazyHeap()
    heap.set("a", 1)
    heap.set("b", 2)
    heap.set("a", 3)
    assert (heap.first(), heap.least()) == ("b", 2)
    heap.set("a", 0)
    assert (heap.pop(), heap.pop(), heap.pop()) == ("a", "b", None)


def test_a_member_that_left_is_not_found() -> None:
    heap: LazyHeap[int, str] = LazyHeap()
    heap.set("a", 1)
    heap.set("b", 2)
    heap.discard("a")
    heap.discard("never was there")
    assert "a" not in heap
    assert heap.first() == "b"


def test_outdated_entries_do_not_pile_up() -> None:
    heap: LazyHeap[int, int] = LazyHeap()
    for rank in range(10_000):
        heap.set(1, -rank)
    assert repr(heap).startswith("<LazyHeap 1 of ")
    assert len(heap._heap) < 100


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9))))
def test_the_first_is_always_the_least_of_those_that_are_there(changes: list[tuple[int, int | None]]) -> None:
    heap: LazyHeap[int, int] = LazyHeap()
    ranks: dict[int, int] = {}
    for member, rank in changes:
        if rank is None:
            heap.discard(member)
            ranks.pop(member, None)
        else:
            heap.set(member, rank)
            ranks[member] = rank
        assert heap.least() == min(ranks.values(), default=None)
        assert len(heap) == len(ranks)
